//! The pages that come with the server.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use http::{Method, Request};
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use umbel_server::{AgentEndpoint, Server};

use crate::auth::runner;
use crate::desk::{ByName, offered, serve, talker};
use crate::support::Host;

fn header<'a>(reply: &'a crate::support::Reply, name: &str) -> &'a str {
    reply.head.headers.get(name).unwrap_or_else(|| panic!("no {name}")).to_str().unwrap()
}

#[tokio::test]
async fn the_studio_is_served_below_the_base_path_and_one_is_led_there() {
    for (base, at) in [("", ""), ("/x/y", "/x/y")] {
        let host =
            serve(Server::new().base_path(base).studio(true).agent("/agent", offered(talker("hi")))).await;
        for from in ["/", "/studio"] {
            let reply = host.get(&format!("{at}{from}")).await;
            assert_eq!(
                (reply.status().as_u16(), header(&reply, "location")),
                (303, &*format!("{at}/studio/"))
            );
        }
        let mut page = host.get(&format!("{at}/studio/")).await;
        assert_eq!(page.status(), 200);
        assert_eq!(header(&page, "content-type"), "text/html; charset=utf-8");
        assert_eq!(
            header(&page, "content-security-policy"),
            "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
        );
        assert_eq!(header(&page, "x-content-type-options"), "nosniff");
        assert_eq!(header(&page, "referrer-policy"), "no-referrer");
        assert_eq!(header(&page, "cache-control"), "no-cache");
        assert!(page.text().await.starts_with("<!doctype html>"));
        let by_name = host.get(&format!("{at}/studio/index.html")).await;
        assert_eq!(header(&by_name, "etag"), header(&page, "etag"));
        for missing in ["nothing.js", "../Cargo.toml", "docs/nothing.md", "docs/"] {
            let reply = host.get(&format!("{at}/studio/{missing}")).await;
            assert_eq!(reply.status(), 404, "{missing}");
        }
    }
}

#[tokio::test]
async fn a_file_that_the_browser_has_is_not_sent_again() {
    let host = serve(Server::new().studio(true).agent("/agent", offered(talker("hi")))).await;
    let tag = header(&host.get("/studio/index.html").await, "etag").to_owned();
    let asked = |tag: &str| Request::builder().uri("/studio/index.html").header("if-none-match", tag);
    let mut same = host.send(asked(&tag), "").await;
    assert_eq!((same.status().as_u16(), same.text().await.as_str()), (304, ""));
    assert_eq!(host.send(asked("\"other\""), "").await.status(), 200);
}

#[tokio::test]
async fn the_guide_is_there_with_a_table_of_contents() {
    let host = serve(Server::new().studio(true).agent("/agent", offered(talker("hi")))).await;
    let contents = host.get("/studio/docs/index.json").await.json().await;
    let pages = contents.as_array().unwrap();
    assert!(pages.contains(&json!({"name": "agent", "title": "Agent"})), "{contents}");
    assert!(pages.contains(&json!({"name": "models/openai", "title": "OpenAI"})), "{contents}");
    for page in pages {
        let name = page["name"].as_str().unwrap();
        let mut page = host.get(&format!("/studio/docs/{name}.md")).await;
        assert_eq!(page.status(), 200, "{name}");
        assert_eq!(header(&page, "content-type"), "text/markdown; charset=utf-8");
        assert!(page.text().await.len() > 100, "{name}");
    }
}

#[tokio::test]
async fn the_files_need_no_token_and_all_else_does() {
    let server = Server::new().studio(true).auth(ByName);
    let host = serve(server.agent("/", offered(talker("hi"))).agent("/studios", offered(talker("hi")))).await;
    for (path, status) in [
        ("/", 303),
        ("/studio", 303),
        ("/studio/", 200),
        ("/studio/docs/agent.md", 200),
        ("/agents", 401),
        ("/threads", 401),
        ("/studios/threads", 401),
        ("/nowhere", 401),
    ] {
        assert_eq!(host.get(path).await.status(), status, "{path}");
    }
    // The agent is at the same path as what leads to the studio.
    for path in ["/", "/studio/"] {
        assert_eq!(host.post(path, &json!({})).await.status(), 401, "{path}");
    }
    let agents = host.ask("ann", Method::GET, "/agents", &json!(null)).await;
    assert_eq!(agents.status(), 200);
}

#[tokio::test]
async fn without_being_told_so_there_is_no_studio() {
    let endpoint = AgentEndpoint::new(runner("app", "echo").build().unwrap());
    let host = Host::start(Server::new().agent("/studio", endpoint).build().unwrap()).await;
    for path in ["/", "/studio/"] {
        assert_eq!(host.get(path).await.status(), 404, "{path}");
    }
}

#[test]
fn an_agent_cannot_be_where_the_studio_is() {
    for path in ["/studio", "/studio/agent", "/agents"] {
        let error = Server::new().studio(true).agent(path, offered(talker("hi"))).build().unwrap_err();
        assert!(error.to_string().contains("is taken"), "{error}");
    }
}

/// All that anybody could log, at every level.
#[derive(Clone, Default)]
struct Noted(Arc<Mutex<String>>);

impl Visit for Noted {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        writeln!(self.0.lock().unwrap(), "{field}: {value:?}").unwrap();
    }
}

impl<S: Subscriber> Layer<S> for Noted {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        attributes.record(&mut self.clone());
    }

    fn on_record(&self, _: &Id, values: &Record<'_>, _: Context<'_, S>) {
        values.record(&mut self.clone());
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut self.clone());
    }
}

#[tokio::test]
async fn who_signed_in_comes_back_to_a_page_that_anybody_may_read_and_nobody_keeps() {
    let server = Server::new().base_path("/x").studio(true).auth(ByName);
    let host = serve(server.agent("/agent", offered(talker("hi")))).await;
    let noted = Noted::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(noted.clone()));
    let back = |page: &str| format!("/x/studio/{page}?code=c4n4ry&state=c4n4ry");
    let mut page = host.get(&back("signed-in")).await;
    assert_eq!((page.status().as_u16(), header(&page, "content-type")), (200, "text/html; charset=utf-8"));
    assert_eq!(header(&page, "referrer-policy"), "no-referrer");
    assert_eq!(header(&page, "cache-control"), "no-store");
    assert!(header(&page, "content-security-policy").starts_with("default-src 'self'; frame-ancestors"));
    let text = page.text().await;
    assert!(text.contains("src=\"signed-in.js\"") && !text.contains("c4n4ry"), "{text}");
    // Neither is it told by requests that are traced and turned away.
    for (method, path, status) in [
        (Method::GET, back("signed-in/nothing"), 404),
        (Method::POST, back("signed-in"), 401),
        (Method::GET, "/x/agents?code=c4n4ry".to_owned(), 401),
    ] {
        let reply = host.send(Request::builder().method(method).uri(&path), "").await;
        assert_eq!(reply.status(), status, "{path}");
    }
    let noted = noted.0.lock().unwrap();
    assert!(noted.contains("/x/agents") && !noted.contains("c4n4ry"), "{noted}");
}
