//! Settings of runners, runs, models and agents, each where it acts.

use std::time::Duration;

use serde_json::{Value, json};
use umbel::{
    Capabilities, Compactor, Content, CountingIds, Credential, CredentialStore, Error, ErrorKind,
    EventFilter, FunctionTool, InMemoryCredentials, LlmAgent, Mode, ModelErrorKind, ModelRequest, Outcome,
    Part, Payload, Response, Role, RunConfig, RunLimits, Runner, Said, ScriptedModel, Sequential, SessionKey,
    SteppingClock, ToolSet, ToolSpec, agent_fn,
};

use crate::support::{begin, echo, fine, log, outcomes, read, said, stored, with_session};

#[tokio::test]
async fn ids_and_times_come_from_where_the_runner_is_told() {
    let model = ScriptedModel::new("m").call("echo", json!({})).text("done");
    let runner = Runner::builder("app", LlmAgent::new("a").model(model).tool(echo()))
        .ids(CountingIds::default())
        .clock(SteppingClock::new(100.0, 0.5));
    let (runner, key) = with_session(runner.build().unwrap()).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.events[0].run, "e-1");
    assert_eq!(seen.events[0].calls().next().unwrap().id, Some("adk-1".into()));
    let times: Vec<_> = stored(&runner, &key).await.iter().map(|event| event.timestamp).collect();
    assert_eq!(times, [100.0, 100.5, 101.0, 101.5]);
}

#[tokio::test]
async fn the_runners_settings_count_unless_a_run_has_its_own() {
    let call =
        || Response::new(Content::model(Part::call(umbel::FunctionCall::new("echo", Default::default()))));
    let model = ScriptedModel::from_fn("m", move |_| vec![Ok(umbel::Chunk::Complete(call()))]);
    let limits = |model_calls| RunConfig {
        limits: RunLimits { model_calls, ..RunLimits::default() },
        ..RunConfig::default()
    };
    let runner = Runner::builder("app", LlmAgent::new("a").model(model).tool(echo())).config(limits(2));
    let (runner, key) = with_session(runner.build().unwrap()).await;
    assert_eq!(read(runner.run(&key, "hi")).await.responses().len(), 2);
    assert_eq!(read(runner.run_with(&key, "hi", limits(1))).await.responses().len(), 1);
}

#[tokio::test]
async fn credentials_reach_tools_by_way_of_the_store() {
    let secrets = InMemoryCredentials::new();
    secrets.save("app", "ann", "mail", Credential::new("s3cret")).await.unwrap();
    let mail = FunctionTool::with_context("mail", "", |cx, _: Value| {
        Box::pin(async move {
            let (services, key) = (cx.run().services(), cx.run().session_key());
            let store = services.credentials.store();
            Ok(store.load(key.app(), key.user(), "mail").await?.is_some())
        })
    });
    let model = ScriptedModel::new("m").call("mail", json!({})).text("sent");
    let runner = Runner::builder("app", LlmAgent::new("a").model(model).tool(mail)).credentials(secrets);
    let (runner, key) = with_session(runner.build().unwrap()).await;
    assert_eq!(read(runner.run(&key, "hi")).await.responses(), [json!({"result": true})]);
}

#[tokio::test]
async fn agents_read_each_others_thoughts_only_if_told_to() {
    for include in [false, true] {
        let thinks =
            Response::new(Content::new(Role::Model, [Part::thought("a hunch"), Part::text("hello")]));
        let second = ScriptedModel::new("b").recorded().text("ok");
        let agent = Sequential::new("s")
            .agent(LlmAgent::new("a").model(ScriptedModel::new("a").response(thinks)))
            .agent(LlmAgent::new("b").model(second.clone()));
        let (runner, key) = begin(agent).await;
        let config = RunConfig { include_thoughts_from_other_agents: include, ..RunConfig::default() };
        read(runner.run_with(&key, "hi", config)).await.assert_finished();
        assert_eq!(said(&second.requests()[0]).join(" ").contains("a hunch"), include);
    }
}

#[tokio::test]
async fn ids_that_the_flow_minted_are_sent_only_to_models_that_need_them() {
    for needs in [false, true] {
        let mut capabilities = Capabilities::default();
        if needs {
            capabilities = capabilities.pairs_calls_by_id();
        }
        let model = ScriptedModel::new("m")
            .recorded()
            .capabilities(capabilities)
            .call("echo", json!({}))
            .text("done");
        let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).tool(echo())).await;
        read(runner.run(&key, "hi")).await.assert_finished();
        let sent = model.requests()[1].contents.clone();
        assert_eq!(sent.get(1).unwrap().calls().next().unwrap().id.is_some(), needs);
        assert_eq!(sent.get(2).unwrap().responses().next().unwrap().id.is_some(), needs);
    }
}

#[tokio::test]
async fn display_names_are_kept_from_models_that_refuse_them() {
    for refuses in [false, true] {
        let mut capabilities = Capabilities::default();
        if refuses {
            capabilities = capabilities.refuses_display_names();
        }
        let model = ScriptedModel::new("m").recorded().capabilities(capabilities).text("ok");
        let (runner, key) = begin(LlmAgent::new("a").model(model.clone())).await;
        let mut photo = Part::data("image/png", [1u8]);
        if let Payload::InlineData(blob) = &mut photo.payload {
            blob.display_name = Some("me.png".into());
        }
        read(runner.run(&key, Content::new(Role::User, [photo]))).await.assert_finished();
        let sent = model.requests()[0].contents.get(0).unwrap().clone();
        let Payload::InlineData(blob) = &sent.parts[0].payload else { panic!("{sent:?}") };
        assert_eq!(blob.display_name.is_none(), refuses);
    }
}

#[derive(schemars::JsonSchema)]
#[allow(dead_code)]
struct Trip {
    /// Where to.
    city: String,
}

#[tokio::test]
async fn an_agent_says_what_it_wants_to_be_asked() {
    let helper = LlmAgent::new("helper").model(fine()).mode(Mode::SingleTurn).input::<Trip>();
    let model = ScriptedModel::new("m").recorded().call("helper", json!({"city": "Rome"})).text("done");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).sub_agent(helper)).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    let tool = model.requests()[0].tools.get("helper").unwrap().tool.clone();
    assert_eq!(*tool.spec().parameters, ToolSpec::schema_of::<Trip>());
}

#[tokio::test]
async fn summaries_can_be_due_by_runs_or_by_tokens() {
    let mut long = Response::text("1");
    let usage = umbel::Usage { prompt_token_count: Some(50), ..umbel::Usage::default() };
    long.meta_mut().usage_metadata = Some(usage);
    let model = ScriptedModel::new("m").recorded().response(long).text("a summary").text("2");
    let runner = Runner::builder("app", LlmAgent::new("a").model(model.clone()))
        .compaction(Compactor::every(100, 0).or_above(50, 0))
        .clock(SteppingClock::new(1.0, 1.0));
    let (runner, key) = with_session(runner.build().unwrap()).await;
    read(runner.run(&key, "a")).await.assert_finished();
    assert_eq!(read(runner.run(&key, "b")).await.assert_finished().texts(), [("a".into(), "2".into())]);
    assert_eq!(model.requests().len(), 3);
}

#[tokio::test]
async fn a_reading_can_be_limited_to_the_newest_events_without_losing_state() {
    let model = ScriptedModel::new("m").text("1").text("2");
    let agent = LlmAgent::new("a").model(model).output_key("last");
    let runner = Runner::builder("app", agent).clock(SteppingClock::new(1.0, 1.0)).build().unwrap();
    let (runner, key) = with_session(runner).await;
    read(runner.run(&key, "a")).await.assert_finished();
    read(runner.run(&key, "b")).await.assert_finished();
    let words = |filter| {
        let (runner, key) = (runner.clone(), key.clone());
        async move {
            let session = runner.sessions().get(&key, filter).await.unwrap().unwrap();
            assert_eq!(session.state.get("last"), Some(&json!("2")));
            session.events.iter().map(|event| event.text()).collect::<Vec<_>>()
        }
    };
    assert_eq!(words(EventFilter { recent: Some(1), after: None, first: None }).await, ["2"]);
    assert_eq!(words(EventFilter { recent: Some(0), after: None, first: None }).await, [""; 0]);
    assert_eq!(words(EventFilter { recent: None, after: Some(3.0), first: None }).await, ["b", "2"]);
    assert_eq!(words(EventFilter { first: Some(1), ..EventFilter::default() }).await, ["a"]);
}

#[tokio::test]
async fn a_run_whose_session_is_gone_or_made_anew_writes_nothing_more() {
    for (anew, kind) in [(false, ErrorKind::SessionNotFound), (true, ErrorKind::Fenced)] {
        let own = agent_fn("own", move |run| {
            Box::pin(async move {
                let (store, key) = (&run.services().sessions, run.session_key());
                store.delete(key).await?;
                if anew {
                    store.create(umbel::NewSession::new(key.clone())).await?;
                }
                run.emit(run.event().with_content(Content::model("too late"))).await?;
                run.flush().await
            })
        });
        let (runner, key) = begin(own).await;
        let seen = read(runner.run(&key, "hi")).await;
        assert_eq!((seen.kind(), seen.code()), (kind, kind.code()));
        assert!(seen.events.is_empty());
        if anew {
            assert!(log(&runner, &key).await.is_empty());
        }
    }
}

#[tokio::test]
async fn a_run_cancelled_while_it_waits_for_its_session_leaves_no_trace() {
    use futures::StreamExt;
    let first = agent_fn("waiting", |run| {
        Box::pin(async move {
            run.emit(run.event().with_content(Content::model("one moment"))).await?;
            run.flush().await?;
            run.cancel_token().guard(std::future::pending::<()>()).await
        })
    });
    let (runner, key) = begin(first).await;
    let mut holder = runner.run(&key, "hi");
    holder.next().await.unwrap().unwrap();
    let config = RunConfig { wait_for_session: Duration::from_secs(30), ..RunConfig::default() };
    let waiter = runner.run_with(&key, "me too", config);
    let token = waiter.cancel_token();
    let cancel = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        token.cancel(umbel::CancelReason::Asked);
    };
    let (seen, ()) = tokio::join!(read(waiter), cancel);
    assert_eq!(seen.outcome, Outcome::Cancelled);
    holder.cancel();
    read(holder).await;
    assert_eq!(stored(&runner, &key).await.len(), 2);
    assert_eq!(outcomes(&log(&runner, &key).await), [Outcome::Cancelled]);
}

#[test]
fn errors_tell_whether_trying_again_may_help() {
    let of = |kind| Error::new(kind, "x").is_retryable();
    for kind in [ModelErrorKind::RateLimited, ModelErrorKind::Overloaded, ModelErrorKind::Transport] {
        assert!(of(ErrorKind::Model(kind)), "{kind:?}");
    }
    for kind in [ModelErrorKind::Auth, ModelErrorKind::Refused, ModelErrorKind::ContextTooLong] {
        assert!(!of(ErrorKind::Model(kind)), "{kind:?}");
    }
    assert!(of(ErrorKind::SessionBusy) && of(ErrorKind::StaleSession) && of(ErrorKind::StreamCut));
    assert!(!of(ErrorKind::InvalidInput) && !of(ErrorKind::Cancelled));
}

/// What the model was declared, and told.
fn declared(request: &ModelRequest) -> Value {
    let names: Vec<_> = request.tools.specs().map(|spec| spec.name.to_string()).collect();
    json!({"tools": names, "told": request.instruction.text()})
}

#[tokio::test]
async fn tools_and_an_instruction_of_a_run_are_for_that_run_alone() {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let model = ScriptedModel::from_fn("m", {
        let seen = seen.clone();
        move |request| {
            seen.lock().unwrap().push(declared(request));
            vec![Ok(umbel::Chunk::Complete(Response::new(Content::model("ok"))))]
        }
    });
    let (runner, key) =
        with_session(Runner::new("app", LlmAgent::new("a").model(model).tool(echo())).unwrap()).await;
    let mut tools = ToolSet::new();
    tools.add(std::sync::Arc::new(FunctionTool::raw(
        ToolSpec::new("pick", "Picks", json!({"type": "object"})),
        |_, _| Box::pin(async { Ok(Value::Null.into()) }),
    )));
    // The agent has a tool of this name, which counts.
    tools.add(std::sync::Arc::new(FunctionTool::raw(
        ToolSpec::new("echo", "Not the one", json!({"type": "object"})),
        |_, _| Box::pin(async { Ok(Value::Null.into()) }),
    )));
    let config = RunConfig {
        tools: Some(std::sync::Arc::new(tools)),
        instruction: Some("Be terse.".into()),
        ..RunConfig::default()
    };
    read(runner.run_with(&key, "hi", config)).await;
    read(runner.run(&key, "hi")).await;
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen[0]["tools"], json!(["echo", "pick"]));
    assert!(seen[0]["told"].as_str().unwrap().contains("Be terse."), "{}", seen[0]);
    assert_eq!(seen[1]["tools"], json!(["echo"]));
    assert!(!seen[1]["told"].as_str().unwrap().contains("Be terse."), "{}", seen[1]);
}

#[tokio::test]
async fn values_of_a_run_are_found_by_their_type_and_metadata_stays_with_the_message() {
    struct Caller(&'static str);
    let who = FunctionTool::with_context("who", "", |cx, _: Value| {
        Box::pin(async move { Ok(cx.run().extension::<Caller>().map(|caller| caller.0)) })
    });
    let model =
        ScriptedModel::new("m").call("who", json!({})).text("done").call("who", json!({})).text("done");
    let (runner, key) =
        with_session(Runner::new("app", LlmAgent::new("a").model(model).tool(who)).unwrap()).await;
    let mut config = RunConfig::default();
    config.extensions.insert(Caller("ann"));
    config.input_metadata.insert("source".into(), json!("web"));
    assert_eq!(read(runner.run_with(&key, "hi", config)).await.responses(), [json!({"result": "ann"})]);
    assert_eq!(read(runner.run(&key, "hi")).await.responses(), [json!({"result": null})]);
    let events = stored(&runner, &key).await;
    let marked =
        events.iter().filter(|event| event.meta.as_ref().is_some_and(|meta| meta.custom_metadata.is_some()));
    let marked: Vec<_> = marked.map(|event| event.author().to_owned()).collect();
    assert_eq!(marked, ["user"]);
}

#[tokio::test]
async fn pieces_of_text_can_be_read_as_such_and_are_previews_otherwise() {
    let chunks = || ["Hel".to_owned(), "lo".to_owned(), ".".to_owned()];
    let model = ScriptedModel::new("m").stream(chunks()).stream(chunks());
    let agent = LlmAgent::new("a").model(model);
    let (runner, key) = with_session(Runner::new("app", agent).unwrap()).await;
    let config = RunConfig { streaming: true, ..RunConfig::default() };
    let (mut pieces, mut whole) = (Vec::new(), Vec::new());
    let mut stream = runner.run_with(&key, "hi", config.clone());
    while let Some(said) = stream.said().await {
        match said.unwrap() {
            Said::Piece(piece) => pieces.push(stream.preview(piece)),
            Said::Event(event) => whole.push(event),
        }
    }
    assert_eq!(pieces.iter().map(|event| event.text()).collect::<Vec<_>>(), chunks());
    assert!(
        pieces.iter().all(|event| event.is_partial() && event.run == *stream.id() && event.timestamp > 0.0)
    );
    assert!(
        whole.len() == 1 && whole[0].text() == "Hello." && pieces.iter().all(|piece| piece.id == whole[0].id)
    );
    let seen = read(runner.run_with(&key, "hi", config)).await;
    assert_eq!(
        seen.events.iter().map(|event| event.text()).collect::<Vec<_>>(),
        ["Hel", "lo", ".", "Hello."]
    );
    assert!(seen.events[0].source == pieces[0].source && seen.events[0].content == pieces[0].content);
}

#[tokio::test]
async fn a_session_that_is_not_there_is_made_by_its_run_if_that_is_wanted() {
    let model = ScriptedModel::new("m").text("one").text("two");
    let runner = Runner::new("app", LlmAgent::new("a").model(model)).unwrap();
    let key = SessionKey::new("app", "ann", "new").unwrap();
    let refused = read(runner.run(&key, "hi")).await;
    assert_eq!(refused.error.map(|error| error.kind()), Some(ErrorKind::SessionNotFound));
    let config = RunConfig { create_session: true, ..RunConfig::default() };
    for said in ["one", "two"] {
        assert_eq!(runner.run_with(&key, "hi", config.clone()).text().await.unwrap(), said);
    }
    assert_eq!(stored(&runner, &key).await.len(), 4);
}

#[tokio::test]
async fn a_session_can_be_looked_at_before_during_and_after_runs() {
    let model = ScriptedModel::new("m").call("echo", json!({})).text("one").text("two");
    let agent = LlmAgent::new("a").model(model).tool(echo());
    let (runner, key) = with_session(Runner::new("app", agent).unwrap()).await;
    assert!(runner.session(&key).await.unwrap().unwrap().events.is_empty());
    let mut stream = runner.run(&key, "hi");
    futures::StreamExt::next(&mut stream).await;
    let during = runner.session(&key).await.unwrap().unwrap();
    assert_eq!(during.running.as_ref(), Some(stream.id()));
    read(stream).await;
    let after = runner.session(&key).await.unwrap().unwrap();
    assert_eq!((after.events.len(), after.running), (4, None));
    read(runner.run(&key, "again")).await;
    assert_eq!(runner.session(&key).await.unwrap().unwrap().events.len(), 6);
    let other = umbel::SessionKey::new("app", "ann", "no such").unwrap();
    assert!(runner.session(&other).await.unwrap().is_none());
}
