//! Gemini, by key.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel_core::{
    Chunk, Content, Effort, ErrorKind, FunctionCall, Model, ModelErrorKind, Part, Role, Thinking, ToolChoice,
    ToolSet,
};

use crate::support::{
    assert_bodies_grow, body, content, named, parts, read_stream, read_whole, request, sse, streamed_text,
    weather_tools, whole,
};

fn frame(parts: Value) -> Value {
    json!({"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}], "modelVersion": "g-1"})
}

fn last(parts: Value, reason: &str) -> Value {
    json!({"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": reason, "index": 0}],
           "modelVersion": "g-1"})
}

/// Ids that Gemini did not give are ours, and not the same each time.
fn without_minted(mut parts: Value) -> Value {
    for part in parts.as_array_mut().unwrap() {
        let call = part.get_mut("functionCall").and_then(Value::as_object_mut);
        if let Some(call) = call.filter(|call| call["id"].as_str().unwrap().starts_with("adk-")) {
            call.shift_remove("id");
        }
    }
    parts
}

#[test]
fn a_conversation_is_sent_in_the_form_it_has() {
    let said = json!([
        {"role": "user", "parts": [
            {"text": "Look"},
            {"inlineData": {"mimeType": "image/png", "data": "AAEC"}, "mediaResolution": {"level": "MEDIA_RESOLUTION_LOW"}},
            {"fileData": {"fileUri": "https://f/1", "mimeType": "video/mp4"}, "videoMetadata": {"fps": 1}}]},
        {"role": "model", "parts": [
            {"text": "hm", "thought": true},
            {"text": "I ask.", "thoughtSignature": "c2ln"},
            {"executableCode": {"code": "1", "language": "PYTHON"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
            {"toolCall": {"id": "s1", "toolType": "GOOGLE_SEARCH"}, "thoughtSignature": "c3Jj"},
            {"functionCall": {"id": "c1", "name": "get_weather", "args": {"city": "Rome"}}, "thoughtSignature": "Y2Fs"}]},
        {"role": "user", "parts": [
            {"functionResponse": {"id": "c1", "name": "get_weather", "response": {"image": {"$ref": "sky.png"}},
                "parts": [{"inlineData": {"mimeType": "image/png", "data": "AAEC", "displayName": "sky.png"}}]}}]},
        {"role": "model", "parts": [{"text": "Sunny."}, {"thoughtSignature": "YmFyZQ=="}]},
        {"role": "user", "parts": [{"text": "Thanks"}]},
    ]);
    let contents = said.as_array().unwrap().iter().cloned().map(content);
    let mut request = request(contents);
    request.instruction.push("agent", "Be brief.");
    request.tools = weather_tools();
    let written = body(&named("gemini/gemini-3-pro-preview"), &request);
    assert_eq!(written["contents"], said);
    assert_eq!(written["systemInstruction"], json!({"parts": [{"text": "Be brief."}]}));
    let declared = &written["tools"][0]["functionDeclarations"][0];
    assert_eq!(
        (&declared["name"], &declared["description"]),
        (&json!("get_weather"), &json!("Tells the weather."))
    );
    assert_eq!(declared["parametersJsonSchema"]["properties"]["city"]["type"], "string");
    assert_eq!(written.get("generationConfig"), None);
}

#[test]
fn settings_are_sent_by_their_names_here() {
    let mut request = request([Content::user("hi")]);
    request.tools = weather_tools();
    let config = Arc::make_mut(&mut request.config);
    config.temperature = Some(0.5);
    config.top_p = Some(0.9);
    config.top_k = Some(40);
    config.max_output_tokens = Some(100);
    config.stop_sequences = vec!["END".to_owned()];
    config.seed = Some(7);
    config.presence_penalty = Some(0.1);
    config.frequency_penalty = Some(0.2);
    config.tool_choice = Some(ToolChoice::Tool("get_weather".into()));
    config.labels.insert("team".to_owned(), json!("blue"));
    for (key, value) in [
        ("safetySettings", json!([{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}])),
        ("cachedContent", json!("cachedContents/1")),
        ("serviceTier", json!("flex")),
        ("responseModalities", json!(["TEXT"])),
        ("generationConfig", json!({"topK": 41})),
        ("tools", json!([{"googleSearch": {}}])),
        ("toolConfig", json!({"functionCallingConfig": {"streamFunctionCallArguments": true}})),
    ] {
        config.other.insert(key.to_owned(), value);
    }
    request.output_schema = Some(Arc::new(json!({"type": "object"})));
    let written = body(&named("gemini/gemini-2.5-flash"), &request);
    assert_eq!(
        written["generationConfig"],
        json!({"temperature": 0.5, "topP": 0.9, "topK": 41, "maxOutputTokens": 100, "stopSequences": ["END"],
               "seed": 7, "presencePenalty": 0.1, "frequencyPenalty": 0.2, "responseMimeType": "application/json",
               "responseJsonSchema": {"type": "object"}, "responseModalities": ["TEXT"]})
    );
    assert_eq!(written["safetySettings"][0]["threshold"], "BLOCK_NONE");
    assert_eq!(
        (&written["cachedContent"], &written["serviceTier"]),
        (&json!("cachedContents/1"), &json!("flex"))
    );
    assert_eq!(written["tools"][1], json!({"googleSearch": {}}));
    assert_eq!(
        written["toolConfig"]["functionCallingConfig"],
        json!({"streamFunctionCallArguments": true, "mode": "ANY", "allowedFunctionNames": ["get_weather"]})
    );
    assert_eq!(written.get("labels"), None, "the Gemini API refuses labels");
    for (choice, mode) in [(ToolChoice::Any, "ANY"), (ToolChoice::None, "NONE"), (ToolChoice::Auto, "AUTO")] {
        Arc::make_mut(&mut request.config).tool_choice = Some(choice);
        let written = body(&named("gemini/m"), &request);
        assert_eq!(written["toolConfig"]["functionCallingConfig"]["mode"], mode);
    }
    request.tools = Arc::new(ToolSet::new());
    let written = body(&named("gemini/m"), &request);
    assert_eq!(written["tools"], json!([{"googleSearch": {}}]));
    assert_eq!(written["toolConfig"]["functionCallingConfig"].get("mode"), None);
}

#[test]
fn a_media_type_is_asked_for_without_a_schema_too() {
    let mut request = request([Content::user("hi")]);
    Arc::make_mut(&mut request.config).response_mime_type = Some("text/x.enum".into());
    let written = body(&named("gemini/gemini-2.5-flash"), &request);
    assert_eq!(written["generationConfig"], json!({"responseMimeType": "text/x.enum"}));
}

#[test]
fn each_generation_is_told_how_hard_to_think_in_its_own_way() {
    let config = |model: &str, thinking: Thinking| {
        let mut request = request([Content::user("hi")]);
        Arc::make_mut(&mut request.config).thinking = Some(thinking);
        body(&named(model), &request)["generationConfig"]["thinkingConfig"].clone()
    };
    let shown = Thinking { include_thoughts: true, ..Thinking::default() };
    let (new, old) = ("gemini/gemini-3-flash-preview", "gemini/gemini-2.5-pro");
    assert_eq!(config(new, shown), json!({"includeThoughts": true}));
    let both = Thinking { effort: Some(Effort::Low), budget: Some(512), ..shown };
    assert_eq!(config(new, both), json!({"includeThoughts": true, "thinkingLevel": "LOW"}));
    assert_eq!(config("gemini/gemini-flash-latest", both)["thinkingLevel"], "LOW");
    assert_eq!(config(old, both), json!({"includeThoughts": true, "thinkingBudget": 512}));
    let budget = Thinking { budget: Some(0), ..Thinking::default() };
    assert_eq!(config(new, budget), json!({"includeThoughts": false, "thinkingBudget": 0}));
    let tokens =
        [(Effort::Minimal, 1024), (Effort::Low, 1024), (Effort::Medium, 8192), (Effort::High, 24_576)];
    for (effort, tokens) in tokens {
        let thinking = Thinking { effort: Some(effort), ..Thinking::default() };
        assert_eq!(config(old, thinking)["thinkingBudget"], tokens);
        assert_eq!(config(new, thinking)["thinkingLevel"], effort.as_str().to_uppercase());
    }
}

#[test]
fn what_a_model_can_do_depends_on_its_generation() {
    let can = |name: &str| Model::capabilities(&named(name)).schema_with_tools;
    assert!(
        can("gemini/gemini-3-pro-preview") && !can("gemini/gemini-2.5-pro") && !can("google/gemma-3-27b-it")
    );
    let capabilities = Model::capabilities(&named("gemini/gemini-2.5-pro"));
    assert!(capabilities.refuses_display_names && capabilities.pairs_calls_by_id);
}

#[test]
fn a_model_that_may_run_code_itself_gets_the_tool_for_it() {
    let model = named("gemini/gemini-2.5-pro");
    let mut request = request([Content::user("hi")]);
    assert!(body(&model, &request).get("tools").is_none());
    Arc::make_mut(&mut request.config).run_code = true;
    assert_eq!(body(&model, &request)["tools"], json!([{"codeExecution": {}}]));
    request.tools = weather_tools();
    let tools = body(&model, &request)["tools"].clone();
    assert!(tools[0].get("functionDeclarations").is_some());
    assert_eq!(tools[1], json!({"codeExecution": {}}));
    // Whoever asks for it by hand gets it once.
    let by_hand = json!([{"codeExecution": {}}, {"googleSearch": {}}]);
    Arc::make_mut(&mut request.config).other.insert("tools".to_owned(), by_hand);
    assert_eq!(body(&model, &request)["tools"].as_array().unwrap().len(), 3);
    let can = |name: &str| Model::capabilities(&named(name)).runs_code;
    assert!(can("gemini/gemini-2.5-pro") && !can("google/gemma-3-27b-it"));
}

#[test]
fn ids_that_umbel_gave_code_are_not_sent() {
    let said = |id: &str| {
        content(json!({"role": "model", "parts": [
            {"executableCode": {"id": id, "code": "1"}}, {"codeExecutionResult": {"id": id, "output": "1"}}]}))
    };
    let written =
        body(&named("gemini/gemini-2.5-pro"), &request([Content::user("hi"), said("adk-1"), said("theirs")]));
    let parts = &written["contents"][1]["parts"];
    assert_eq!(
        (&parts[0], &parts[1]),
        (&json!({"executableCode": {"code": "1"}}), &json!({"codeExecutionResult": {"output": "1"}}))
    );
    assert_eq!(
        (&parts[2]["executableCode"]["id"], &parts[3]["codeExecutionResult"]["id"]),
        (&json!("theirs"), &json!("theirs"))
    );
}

#[test]
fn a_tool_without_arguments_is_declared_without_parameters() {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Nothing {}
    let mut tools = ToolSet::new();
    tools.add(Arc::new(umbel_core::FunctionTool::new("now", "Tells the time.", |_: Nothing| async {
        Ok("noon".to_owned())
    })));
    let mut request = request([Content::user("hi")]);
    request.tools = Arc::new(tools);
    let written = body(&named("gemini/m"), &request);
    assert_eq!(
        written["tools"],
        json!([{"functionDeclarations": [{"name": "now", "description": "Tells the time."}]}])
    );
}

#[test]
fn what_would_be_refused_is_repaired() {
    let call = |id: &str| Part::call(FunctionCall::new("t", serde_json::Map::new()).with_id(id));
    let answer = |id: &str| json!({"functionResponse": {"id": id, "name": "t", "response": {"ok": id}}});
    let request = request([
        Content::model("I was here first."),
        content(json!({"role": "user", "parts": [answer("gone")]})),
        Content::model("I ask."),
        Content::new(Role::Model, [call("c1"), call("c2"), call("c3")]),
        content(json!({"role": "user", "parts": [answer("c2")]})),
        content(json!({"role": "user", "parts": [answer("c1"), {"text": "well?"}]})),
        content(json!({"role": "user", "parts": [{"text": ""}]})),
        content(json!({"role": "model", "parts": [{"text": ""}]})),
        Content::model("Done."),
    ]);
    let written = body(&named("gemini/gemini-2.5-pro"), &request);
    let messages = written["contents"].as_array().unwrap();
    let shape: Vec<String> = messages
        .iter()
        .map(|message| {
            let kinds: Vec<&str> = message["parts"]
                .as_array()
                .unwrap()
                .iter()
                .map(|part| part.as_object().unwrap().keys().next().unwrap().as_str())
                .collect();
            format!("{}: {}", message["role"].as_str().unwrap(), kinds.join(" "))
        })
        .collect();
    assert_eq!(
        shape,
        [
            "user: text",
            "model: text",
            "user: text",
            "model: text functionCall functionCall functionCall",
            "user: functionResponse functionResponse functionResponse",
            "user: text",
            "model: text",
            "user: text",
        ]
    );
    assert_eq!(messages[2]["parts"][0]["text"], "The tool `t` answered: {\"ok\":\"gone\"}");
    let unanswered = &messages[4]["parts"][2]["functionResponse"];
    assert_eq!(unanswered["id"], "c3");
    assert!(unanswered["response"]["error"].as_str().unwrap().contains("has no answer"));
    let nothing = body(&named("gemini/m"), &crate::support::request([]));
    assert_eq!(nothing["contents"][0]["role"], "user");
}

#[test]
fn calls_without_ids_pair_in_their_order_by_the_name_of_their_tool() {
    let call = |name: &str| json!({"functionCall": {"name": name, "args": {}}});
    let answer =
        |name: &str, said: u8| json!({"functionResponse": {"name": name, "response": {"said": said}}});
    let request = request([
        Content::user("hi"),
        content(json!({"role": "model", "parts": [call("a"), call("a"), call("b")]})),
        content(json!({"role": "user", "parts": [answer("a", 1), answer("a", 2)]})),
        content(json!({"role": "user", "parts": [answer("b", 3), answer("d", 4)]})),
        content(json!({"role": "model", "parts": [call("c")]})),
    ]);
    let written = body(&named("gemini/gemini-2.5-pro"), &request);
    let messages = &written["contents"];
    assert_eq!(messages[2]["parts"], json!([answer("a", 1), answer("a", 2), answer("b", 3)]));
    assert_eq!(messages[3]["parts"][0]["text"], "The tool `d` answered: {\"said\":4}");
    let unanswered = &messages[5]["parts"][0]["functionResponse"];
    assert_eq!((&unanswered["name"], unanswered.get("id")), (&json!("c"), None));
}

#[test]
fn ids_that_gemini_never_saw_are_not_sent() {
    let request = request([
        Content::user("hi"),
        content(json!({"role": "model", "parts": [{"functionCall": {"id": "adk-1", "name": "t", "args": {},
            "unreadableArgs": "{"}}]})),
        content(json!({"role": "user", "parts": [{"functionResponse": {"id": "adk-1", "name": "t"}}]})),
    ]);
    let written = body(&named("gemini/gemini-2.5-pro"), &request);
    assert_eq!(written["contents"][1]["parts"], json!([{"functionCall": {"name": "t", "args": {}}}]));
    assert_eq!(written["contents"][2]["parts"], json!([{"functionResponse": {"name": "t", "response": {}}}]));
}

#[test]
fn what_only_another_provider_understands_is_not_sent() {
    let said = content(json!({"role": "model", "parts": [
        {"text": "hm", "thought": true, "thoughtSignature": "Zm9yZWlnbg==", "anthropic": {}},
        {"text": "hm", "thought": true, "openaiChat": {"thoughtIn": "reasoning"}},
        {"anthropic": {"type": "redacted_thinking", "data": "x"}},
        {"text": "Yes.", "thoughtSignature": "Zm9yZWlnbg==", "openaiResponses": {"id": "1"}},
        {"functionCall": {"id": "c1", "name": "t", "args": {}, "partialArgs": [], "willContinue": false},
         "thoughtSignature": "Zm9yZWlnbg==", "ollama": {}},
        {"functionCall": {"id": "c2", "name": "t", "args": {}}},
    ]}));
    let answer = |id: &str| json!({"functionResponse": {"id": id, "name": "t", "response": {}, "mine": 1}});
    let answers = content(json!({"role": "user", "parts": [answer("c1"), answer("c2")]}));
    let request = request([Content::user("hi"), said, answers]);
    let call = |id: &str| json!({"id": id, "name": "t", "args": {}});
    let written = body(&named("gemini/gemini-2.5-pro"), &request);
    assert_eq!(
        written["contents"][1]["parts"],
        json!([{"text": "Yes."}, {"functionCall": call("c1")}, {"functionCall": call("c2")}])
    );
    assert_eq!(written["contents"][2]["parts"][0]["functionResponse"].get("mine"), None);
    // Gemini 3 insists on a signature of the first call, and takes this one from whoever has none.
    let written = body(&named("gemini/gemini-3-pro-preview"), &request);
    assert_eq!(
        written["contents"][1]["parts"],
        json!([
            {"text": "Yes."},
            {"functionCall": call("c1"), "thoughtSignature": "skip_thought_signature_validator"},
            {"functionCall": call("c2")},
        ])
    );
}

#[test]
fn names_of_media_are_left_out() {
    let request = request([content(json!({"role": "user", "parts": [
        {"inlineData": {"mimeType": "text/plain", "data": "YQ==", "displayName": "a"}},
        {"fileData": {"fileUri": "https://f/1", "displayName": "b"}}]}))]);
    let written = body(&named("gemini/m"), &request);
    assert_eq!(
        written["contents"][0]["parts"],
        json!([{"inlineData": {"data": "YQ==", "mimeType": "text/plain"}}, {"fileData": {"fileUri": "https://f/1"}}])
    );
}

#[test]
fn a_conversation_that_grows_is_sent_with_the_same_bytes_before() {
    let contents: Vec<Content> = (0..10)
        .map(|at| match at % 2 {
            0 => Content::from(format!("question {at}")),
            _ => Content::model(Part::text(format!("answer {at}"))),
        })
        .collect();
    // What ends with the model's turn is sent with a turn of the user behind it, so it is no beginning of anything.
    let model = named("gemini/gemini-3-pro-preview");
    let ends = (1..=contents.len()).step_by(2);
    assert_bodies_grow(ends.map(|len| model.body(&request(contents[..len].iter().cloned()))));
}

#[test]
fn a_stream_gives_thoughts_calls_usage_and_the_same_wherever_it_is_split() {
    let mut end = last(json!([{"text": "", "thoughtSignature": "YmFyZQ=="}]), "STOP");
    end["usageMetadata"] = json!({"promptTokenCount": 20, "candidatesTokenCount": 7, "totalTokenCount": 35,
        "cachedContentTokenCount": 16, "thoughtsTokenCount": 5, "toolUsePromptTokenCount": 3, "serviceTier": "flex"});
    end["responseId"] = json!("r1");
    let bytes = sse(&[
        frame(json!([{"text": "need the ", "thought": true}])),
        frame(json!([{"text": "töol", "thought": true}])),
        frame(json!([{"text": "One "}])),
        frame(json!([{"text": "moment 😀"}, {"text": "!", "thoughtSignature": "dGV4dA=="}])),
        frame(json!([{"text": " So."}])),
        frame(
            json!([{"functionCall": {"id": "c1", "name": "get_weather", "args": {"city": "Berlin"}}, "thoughtSignature": "Y2FsbA=="},
                     {"functionCall": {"name": "get_weather", "args": {"city": "Rome"}}}]),
        ),
        end,
    ]);
    let chunks = read_stream(&named("gemini/gemini-3-pro-preview"), &bytes);
    assert_eq!(streamed_text(&chunks), "One moment 😀! So.");
    let whole = whole(&chunks);
    let expected = json!([
        {"text": "need the töol", "thought": true},
        {"text": "One moment 😀"},
        {"text": "!", "thoughtSignature": "dGV4dA=="},
        {"text": " So."},
        {"functionCall": {"id": "c1", "name": "get_weather", "args": {"city": "Berlin"}}, "thoughtSignature": "Y2FsbA=="},
        {"functionCall": {"name": "get_weather", "args": {"city": "Rome"}}},
        {"text": "", "thoughtSignature": "YmFyZQ=="},
    ]);
    assert_eq!(without_minted(parts(whole)), expected);
    let usage = whole.usage().unwrap();
    assert_eq!(
        (usage.prompt_token_count, usage.candidates_token_count, usage.thoughts_token_count),
        (Some(20), Some(7), Some(5))
    );
    assert_eq!((usage.cached_content_token_count, usage.total_token_count), (Some(16), Some(35)));
    assert_eq!(usage.unknown["toolUsePromptTokenCount"], 3);
    assert_eq!((whole.finish_reason(), whole.error_code()), (Some("STOP"), None));
    let meta = whole.meta.as_ref().unwrap();
    assert_eq!(meta.model_version.as_deref(), Some("g-1"));
    assert_eq!((&meta.unknown["serviceTier"], &meta.unknown["responseId"]), (&json!("flex"), &json!("r1")));

    // All of it goes back as it came, each signature with its part.
    let answers = content(json!({"role": "user", "parts": [
        {"functionResponse": {"id": "c1", "name": "get_weather", "response": {}}},
        {"functionResponse": {"id": whole.content.as_ref().unwrap().calls().nth(1).unwrap().id, "name": "get_weather",
                              "response": {}}}]}));
    let said = whole.content.as_deref().unwrap().clone();
    let written = body(&named("gemini/gemini-3-pro-preview"), &request([Content::user("hi"), said, answers]));
    assert_eq!(written["contents"][1]["parts"], expected);
    assert_eq!(written["contents"].as_array().unwrap().len(), 3);
}

#[test]
fn a_call_is_previewed_with_the_id_that_it_has_in_the_end() {
    let bytes = sse(&[last(json!([{"functionCall": {"name": "t", "args": {}}}]), "STOP")]);
    let chunks = named("gemini/m").read(true, [&bytes[..]]);
    let Ok(Chunk::Delta(preview)) = &chunks[0] else { panic!("{chunks:?}") };
    assert_eq!(parts(preview), parts(whole(&chunks)));
}

#[test]
fn arguments_that_come_in_pieces_are_put_together() {
    let call = |call: Value| frame(json!([{"functionCall": call}]));
    let bytes = sse(&[
        frame(
            json!([{"functionCall": {"name": "plan", "id": "c1", "willContinue": true}, "thoughtSignature": "cw=="}]),
        ),
        call(
            json!({"partialArgs": [{"jsonPath": "$.city", "stringValue": "New ", "willContinue": true}], "willContinue": true}),
        ),
        call(json!({"partialArgs": [{"jsonPath": "$.city", "stringValue": "Delhi"}], "willContinue": true})),
        call(
            json!({"partialArgs": [{"jsonPath": "$.days[0]", "numberValue": 3}, {"jsonPath": "$.ok", "boolValue": true},
                                    {"jsonPath": "$.none", "nullValue": "NULL_VALUE"}], "willContinue": true}),
        ),
        call(json!({})),
        call(json!({"name": "next", "willContinue": true})),
        last(json!([{"functionCall": {}}]), "STOP"),
    ]);
    let chunks = read_stream(&named("gemini/gemini-3-pro-preview"), &bytes);
    assert_eq!(
        without_minted(parts(whole(&chunks))),
        json!([
            {"functionCall": {"id": "c1", "name": "plan", "args": {"city": "New Delhi", "days": [3], "ok": true, "none": null}},
             "thoughtSignature": "cw=="},
            {"functionCall": {"name": "next", "args": {}}},
        ])
    );
    let previewed: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| match chunk {
            Ok(Chunk::Delta(delta)) => Some(parts(delta)[0]["functionCall"].clone()),
            _ => None,
        })
        .collect();
    assert_eq!(previewed[0], json!({"id": "c1", "name": "plan", "willContinue": true}));
    assert_eq!(previewed[1]["partialArgs"][0]["stringValue"], "New ");
    assert_eq!(previewed[4], json!({"id": "c1", "name": "plan", "willContinue": false}));
}

#[test]
fn an_answer_that_is_not_streamed_says_the_same() {
    let said = json!([
        {"text": "hm", "thought": true},
        {"text": "Once upon"},
        {"inlineData": {"data": "AAEC", "mimeType": "image/png"}, "thoughtSignature": "aW1n"},
        {"executableCode": {"code": "1", "language": "PYTHON"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"toolCall": {"id": "s1", "toolType": "GOOGLE_SEARCH"}},
        {"toolResponse": {"id": "s1", "toolType": "GOOGLE_SEARCH"}},
        {"thoughtSignature": "YmFyZQ=="},
        {"functionCall": {"id": "c1", "name": "t", "args": {"a": 1}}},
    ]);
    let mut answer = last(said.clone(), "MAX_TOKENS");
    let candidate = &mut answer["candidates"][0];
    candidate["groundingMetadata"] = json!({"webSearchQueries": ["q"]});
    candidate["citationMetadata"] = json!({"citationSources": [{"uri": "http://a"}]});
    candidate["avgLogprobs"] = json!(-0.25);
    candidate["logprobsResult"] = json!({"chosenCandidates": [{"token": "Once", "logProbability": -0.1}]});
    candidate["safetyRatings"] = json!([{"category": "HARM_CATEGORY_HARASSMENT", "probability": "LOW"}]);
    candidate["urlContextMetadata"] = json!({"urlMetadata": []});
    candidate["finishMessage"] = json!("enough");
    let model = named("gemini/gemini-3-pro-preview");
    let whole_answer = read_whole(&model, &answer);
    assert_eq!(parts(&whole_answer), said);
    assert_eq!(whole_answer.error_code(), Some("MAX_TOKENS"));
    let meta = whole_answer.meta.as_ref().unwrap();
    assert_eq!(meta.error_message.as_deref(), Some("enough"));
    assert_eq!(meta.grounding_metadata.as_ref().unwrap()["webSearchQueries"][0], "q");
    assert_eq!(meta.citation_metadata.as_ref().unwrap()["citationSources"][0]["uri"], "http://a");
    assert_eq!(meta.unknown["logprobsResult"]["chosenCandidates"][0]["token"], "Once");
    assert_eq!(meta.unknown["avgLogprobs"], -0.25);
    assert_eq!(meta.unknown["safetyRatings"][0]["probability"], "LOW");
    assert!(meta.unknown.contains_key("urlContextMetadata"));
    assert_eq!(whole(&read_stream(&model, &sse(&[answer]))), &whole_answer);
    // Asked for a stream without frames, Gemini answers with a list.
    let listed = json!([frame(json!([{"text": "One "}])), last(json!([{"text": "two"}]), "STOP")]);
    assert_eq!(parts(&read_whole(&model, &listed)), json!([{"text": "One two"}]));
}

#[test]
fn sources_and_probabilities_that_come_in_pieces_run_together() {
    let piece = |uri: &str, token: &str, reason: Option<&str>| {
        json!({"candidates": [{"content": {"parts": [{"text": token}]}, "finishReason": reason,
            "citationMetadata": {"citationSources": [{"uri": uri}]},
            "logprobsResult": {"chosenCandidates": [{"token": token}]}}]})
    };
    let bytes = sse(&[piece("http://a", "One", None), piece("http://b", "two", Some("STOP"))]);
    let chunks = read_stream(&named("gemini/m"), &bytes);
    let meta = whole(&chunks).meta.as_ref().unwrap();
    assert_eq!(
        meta.citation_metadata.as_ref().unwrap()["citationSources"],
        json!([{"uri": "http://a"}, {"uri": "http://b"}])
    );
    assert_eq!(
        meta.unknown["logprobsResult"]["chosenCandidates"],
        json!([{"token": "One"}, {"token": "two"}])
    );
}

#[test]
fn every_reason_to_stop_but_the_good_one_is_an_error_of_its_name() {
    for reason in [
        "MAX_TOKENS",
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "OTHER",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "MALFORMED_FUNCTION_CALL",
        "IMAGE_SAFETY",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "IMAGE_PROHIBITED_CONTENT",
        "NO_IMAGE",
        "IMAGE_RECITATION",
        "IMAGE_OTHER",
        "SOMETHING_NEW",
    ] {
        let whole = read_whole(&named("gemini/m"), &json!({"candidates": [{"finishReason": reason}]}));
        assert_eq!((whole.finish_reason(), whole.error_code()), (Some(reason), Some(reason)));
        assert_eq!(whole.meta.unwrap().unknown["stopReason"], reason);
        assert_eq!(whole.content, None);
    }
    let calls = read_whole(
        &named("gemini/m"),
        &last(json!([{"functionCall": {"id": "c", "name": "t"}}]), "FUNCTION_CALL"),
    );
    assert_eq!((calls.finish_reason(), calls.error_code()), (Some("STOP"), None));
    let silent = read_whole(&named("gemini/m"), &last(json!([]), "STOP"));
    assert_eq!((silent.content.as_ref(), silent.error_code()), (None, None));
}

#[test]
fn a_prompt_that_was_blocked_is_an_error_of_that_name_streamed_or_not() {
    let blocked = json!({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "no"},
        "usageMetadata": {"promptTokenCount": 4}});
    let model = named("gemini/m");
    let answer = read_whole(&model, &blocked);
    assert_eq!(whole(&read_stream(&model, &sse(&[blocked]))), &answer);
    assert_eq!(answer.error_code(), Some("PROHIBITED_CONTENT"));
    assert_eq!(answer.usage().unwrap().prompt_token_count, Some(4));
    assert_eq!(answer.meta.unwrap().error_message.as_deref(), Some("no"));
}

#[test]
fn only_the_first_candidate_is_read() {
    let answer = json!({"candidates": [
        {"index": 1, "content": {"parts": [{"text": "other"}]}, "finishReason": "SAFETY"},
        {"index": 0, "content": {"parts": [{"text": "this"}]}, "finishReason": "STOP"}]});
    let whole = read_whole(&named("gemini/m"), &answer);
    assert_eq!((parts(&whole), whole.error_code()), (json!([{"text": "this"}]), None));
}

#[test]
fn parts_and_frames_of_later_versions_are_kept_and_parts_go_back() {
    let new = json!({"hologram": {"a": 1}, "thoughtSignature": "cw==", "anthropic": 3});
    let bytes = sse(&[json!({"news": true}), last(json!([new, {"text": null}]), "STOP")]);
    let model = named("gemini/gemini-3-pro-preview");
    let chunks = read_stream(&model, &bytes);
    let said = whole(&chunks).content.as_deref().unwrap().clone();
    assert_eq!(said.parts.len(), 1);
    let written = body(&model, &request([Content::user("hi"), said]));
    assert_eq!(written["contents"][1]["parts"], json!([new]));
    assert_eq!(whole(&chunks).meta.as_ref().unwrap().unknown["unknownFrames"], json!([{"news": true}]));
}

#[test]
fn streams_that_fail_or_break_off_end_with_an_error_that_says_so() {
    let model = named("gemini/m");
    let read = |bytes: &[u8]| read_stream(&model, bytes).pop().unwrap().unwrap_err();
    assert_eq!(read(&sse(&[frame(json!([{"text": "Once"}]))])).kind(), ErrorKind::StreamCut);
    assert_eq!(read(b"").kind(), ErrorKind::StreamCut);
    let overloaded =
        json!({"error": {"code": 503, "message": "The model is overloaded", "status": "UNAVAILABLE"}});
    let failed = read(&sse(&[frame(json!([{"text": "Once"}])), overloaded.clone()]));
    assert_eq!(failed.kind(), ErrorKind::Model(ModelErrorKind::Overloaded));
    assert!(failed.message().contains("gemini: The model is overloaded (503, UNAVAILABLE)"), "{failed}");
    let whole = model.read(false, [json!([overloaded]).to_string().as_bytes()]).pop().unwrap().unwrap_err();
    assert_eq!(whole.kind(), ErrorKind::Model(ModelErrorKind::Overloaded));
    let unfinished = json!([frame(json!([{"text": "Once"}]))]).to_string();
    let error = model.read(false, [unfinished.as_bytes()]).pop().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Model(ModelErrorKind::Other));
}

#[test]
fn hostile_bytes_are_errors_and_nothing_worse() {
    let model = named("gemini/m");
    for bytes in [
        &b"data: {\"candidates\": 3}\n\n"[..],
        b"data: {\"candidates\": [{\"content\": {\"parts\": [3]}}]}\n\n",
        b"data: {\"candidates\": [{\"content\": {\"parts\": [{\"functionCall\": []}]}}]}\n\n",
        b"data: {\"candidates\": [{\"content\": {\"parts\": [{\"inlineData\": {\"data\": \"!\"}}]}}]}\n\n",
        b"data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"\\ud800\"}]}}]}\n\n",
        b"data: {\"usageMetadata\": {\"promptTokenCount\": -1}}\n\n",
        b"data: [DONE]\n\n",
        b"data: \xff\n\n",
    ] {
        let error = read_stream(&model, bytes).pop().unwrap().unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::Model(ModelErrorKind::Other),
            "{}",
            String::from_utf8_lossy(bytes)
        );
        let data = bytes.strip_prefix(b"data: ").unwrap();
        assert!(model.read(false, [data]).pop().unwrap().is_err());
    }
}

#[test]
fn older_models_get_media_of_tools_behind_the_answer() {
    let answer = json!({"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "t", "response": {"ok": true},
        "parts": [{"inlineData": {"mimeType": "image/png", "data": "AAEC"}}]}}]});
    let call = json!({"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "t", "args": {}}}]});
    let request = request([Content::user("look"), content(call), content(answer)]);
    let written = |name: &str| body(&named(name), &request)["contents"].clone();
    let old = written("gemini/gemini-2.5-flash");
    assert_eq!(old[2]["parts"][0]["functionResponse"].get("parts"), None);
    let last = old.as_array().unwrap().last().unwrap()["parts"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["inlineData"]["mimeType"], "image/png");
    let new = written("gemini/gemini-3-pro");
    assert!(new[2]["parts"][0]["functionResponse"].get("parts").is_some());
}
