//! Every kind of event: with everything it may carry, and with nothing but what it must.

use serde_json::{Value, json};

/// What any event may carry besides.
fn with_base(mut event: Value) -> Value {
    let base = json!({
        "timestamp": -1_700_000_000_123_i64,
        "rawEvent": {"deep": [1, null, {"x": true}]},
        "metadata": {"null": null, "ag-ui": {"k": [0.5, "ü"]}},
    });
    event.as_object_mut().unwrap().extend(base.as_object().unwrap().clone());
    event
}

/// The same with the mark of a sub-agent.
fn marked(event: Value) -> Value {
    let mut event = with_base(event);
    event["subagentRunId"] = "sub".into();
    event
}

fn parts() -> Value {
    json!([
        {"type": "text", "text": "look", "id": "p1", "metadata": {"a": 1}},
        {"type": "text", "text": ""},
        {"type": "image", "source": {"type": "data", "value": "AAEC", "mimeType": "image/png"}, "id": "p2",
         "metadata": "any"},
        {"type": "audio", "source": {"type": "url", "value": "https://example.invalid/a", "mimeType": "audio/mp3"}},
        {"type": "video", "source": {"type": "url", "value": "https://example.invalid/v"}},
        {"type": "document", "source": {"type": "file", "value": "file-1", "provider": "p", "mimeType": "text/plain"}},
        {"type": "document", "source": {"type": "file", "value": "file-2"}},
    ])
}

/// Every kind of message, with everything it may carry and with little.
pub(crate) fn messages() -> Vec<Value> {
    let metadata = json!({"k": {"n": null}});
    let messages = json!([
        {"role": "developer", "id": "1", "content": "d", "name": "n", "encryptedValue": "e", "metadata": metadata,
         "subagentRunId": "sub"},
        {"role": "system", "id": "2", "content": "s"},
        {"role": "assistant", "id": "3", "content": "a", "toolCalls": [
            {"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{\"a\":1}"},
             "encryptedValue": "e", "metadata": metadata},
            {"id": "c2", "type": "function", "function": {"name": "t", "arguments": ""}}],
         "name": "n", "encryptedValue": "e", "metadata": metadata, "subagentRunId": "sub"},
        {"role": "assistant", "id": "4"},
        {"role": "user", "id": "5", "content": parts(), "name": "n", "encryptedValue": "e", "metadata": metadata,
         "subagentRunId": "sub"},
        {"role": "user", "id": "6", "content": ""},
        {"role": "tool", "id": "7", "content": parts(), "toolCallId": "c1", "error": "x", "encryptedValue": "e",
         "metadata": metadata, "subagentRunId": "sub"},
        {"role": "tool", "id": "8", "content": "", "toolCallId": "c2"},
        {"role": "activity", "id": "9", "activityType": "search", "content": {"q": [null]}, "metadata": metadata,
         "subagentRunId": "sub"},
        {"role": "activity", "id": "10", "activityType": "search", "content": {}},
        {"role": "reasoning", "id": "11", "content": "hm", "encryptedValue": "e", "metadata": metadata,
         "subagentRunId": "sub"},
        {"role": "reasoning", "id": "12", "content": ""},
    ]);
    messages.as_array().unwrap().clone()
}

fn usage() -> Value {
    json!([
        {"provider": "p", "model": "m", "inputTokens": 9_007_199_254_740_991_i64, "outputTokens": 2, "totalTokens": 3,
         "reasoningTokens": 4, "cachedInputTokens": 5, "cacheWriteInputTokens": 0},
        {},
    ])
}

fn patch() -> Value {
    json!([
        {"op": "add", "path": "/a~1b", "value": {"x": null}},
        {"op": "remove", "path": "/b"},
        {"op": "replace", "path": "", "value": null},
        {"op": "move", "from": "/c", "path": "/d"},
        {"op": "copy", "from": "/c", "path": "/d"},
        {"op": "test", "path": "/e", "value": false},
    ])
}

pub(crate) fn input() -> Value {
    json!({
        "threadId": "t", "runId": "r", "protocolVersion": "1.0", "parentRunId": "p",
        "state": {"n": 1, "list": [true, "x", 2.5]},
        "messages": messages(),
        "tools": [
            {"name": "pick", "description": "picks", "parameters": {"type": "object"}, "metadata": {"k": 1}},
            {"name": "bare", "description": ""}],
        "context": [{"description": "tz", "value": "UTC"}],
        "forwardedProps": {"temperature": 0.1, "nested": [1, null]},
        "resume": [
            {"interruptId": "i", "status": "resolved", "payload": {"approved": true}, "metadata": {"k": 1}},
            {"interruptId": "j", "status": "cancelled"}],
    })
}

fn interrupts() -> Value {
    json!([
        {"id": "i", "reason": "tool_call", "message": "may I?", "toolCallId": "c", "responseSchema": {"type": "object"},
         "expiresAt": "2030-01-01T00:00:00Z", "metadata": {"k": null}, "subagentRunId": "sub"},
        {"id": "j", "reason": "umbel:other"},
    ])
}

/// Every kind, with everything it may carry.
pub(crate) fn full() -> Vec<Value> {
    let mut events = full_of_runs();
    events.extend(full_of_messages());
    events
}

fn full_of_runs() -> Vec<Value> {
    let finished = |outcome: Value| {
        with_base(json!({"type": "RUN_FINISHED", "threadId": "t", "runId": "r", "result": {"ok": [1]},
                         "outcome": outcome, "usage": usage()}))
    };
    vec![
        with_base(json!({"type": "RUN_STARTED", "threadId": "t", "runId": "r", "protocolVersion": "1.0",
                         "parentRunId": "p", "input": input()})),
        finished(json!({"type": "success", "pendingToolCallIds": ["c1", "c2"]})),
        finished(json!({"type": "interrupt", "interrupts": interrupts()})),
        finished(json!({"type": "cancelled"})),
        with_base(json!({"type": "RUN_ERROR", "message": "m", "code": "C", "usage": usage()})),
        marked(json!({"type": "STEP_STARTED", "stepName": "s"})),
        marked(json!({"type": "STEP_FINISHED", "stepName": "s"})),
        with_base(
            json!({"type": "SUBAGENT_STARTED", "subagentRunId": "sub", "name": "n", "description": "d",
                         "parentSubagentRunId": "p", "parentToolCallId": "c", "parentMessageId": "m"}),
        ),
        with_base(json!({"type": "SUBAGENT_FINISHED", "subagentRunId": "sub", "result": 1,
                         "outcome": {"type": "success"}})),
        with_base(json!({"type": "SUBAGENT_FINISHED", "subagentRunId": "sub",
                         "outcome": {"type": "suspended", "interruptIds": ["i"]}})),
        with_base(json!({"type": "SUBAGENT_ERROR", "subagentRunId": "sub", "message": "m", "code": "C"})),
        marked(json!({"type": "STATE_SNAPSHOT", "snapshot": {"a": [1, -2.5, true, "x", null, {}]}})),
        marked(json!({"type": "STATE_DELTA", "delta": patch()})),
        with_base(json!({"type": "MESSAGES_SNAPSHOT", "messages": messages()})),
        marked(
            json!({"type": "ACTIVITY_SNAPSHOT", "messageId": "m", "activityType": "search", "content": {"q": 1},
                      "replace": false}),
        ),
        marked(
            json!({"type": "ACTIVITY_DELTA", "messageId": "m", "activityType": "search", "patch": patch()}),
        ),
        marked(json!({"type": "RAW", "event": {"any": "thing"}, "source": "s"})),
        marked(json!({"type": "CUSTOM", "name": "n", "value": [1]})),
    ]
}

fn full_of_messages() -> Vec<Value> {
    vec![
        marked(json!({"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "user", "name": "n"})),
        marked(json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "x".repeat(300)})),
        marked(json!({"type": "TEXT_MESSAGE_END", "messageId": "m"})),
        marked(json!({"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "role": "developer", "delta": "x",
                      "name": "n"})),
        marked(
            json!({"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "t", "parentMessageId": "m"}),
        ),
        marked(json!({"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "{\"a\":"})),
        marked(json!({"type": "TOOL_CALL_END", "toolCallId": "c"})),
        marked(
            json!({"type": "TOOL_CALL_CHUNK", "toolCallId": "c", "toolCallName": "t", "parentMessageId": "m",
                      "delta": "{}"}),
        ),
        marked(json!({"type": "TOOL_CALL_RESULT", "messageId": "m", "toolCallId": "c", "content": "x",
                      "role": "tool"})),
        marked(json!({"type": "TOOL_CALL_RESULT", "messageId": "m", "toolCallId": "c", "content": parts()})),
        marked(json!({"type": "REASONING_START", "messageId": "m"})),
        marked(json!({"type": "REASONING_MESSAGE_START", "messageId": "m", "role": "reasoning"})),
        marked(json!({"type": "REASONING_MESSAGE_CONTENT", "messageId": "m", "delta": "ü\n"})),
        marked(json!({"type": "REASONING_MESSAGE_END", "messageId": "m"})),
        marked(json!({"type": "REASONING_MESSAGE_CHUNK", "messageId": "m", "delta": "x"})),
        marked(json!({"type": "REASONING_END", "messageId": "m"})),
        marked(json!({"type": "REASONING_ENCRYPTED_VALUE", "subtype": "tool-call", "entityId": "c",
                      "encryptedValue": "e"})),
        marked(json!({"type": "REASONING_ENCRYPTED_VALUE", "subtype": "message", "entityId": "m",
                      "encryptedValue": "e"})),
    ]
}

/// Every kind, with nothing but what it must carry.
pub(crate) fn bare() -> Vec<Value> {
    let events = json!([
        {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
        {"type": "RUN_STARTED", "threadId": "t", "runId": "r",
         "input": {"threadId": "t", "runId": "r", "messages": [], "tools": [], "context": []}},
        {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"},
        {"type": "RUN_FINISHED", "threadId": "t", "runId": "r", "outcome": {"type": "success"}},
        {"type": "RUN_ERROR", "message": ""},
        {"type": "STEP_STARTED", "stepName": "s"},
        {"type": "STEP_FINISHED", "stepName": "s"},
        {"type": "TEXT_MESSAGE_START", "messageId": "m"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": ""},
        {"type": "TEXT_MESSAGE_END", "messageId": "m"},
        {"type": "TEXT_MESSAGE_CHUNK"},
        {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "t"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": ""},
        {"type": "TOOL_CALL_END", "toolCallId": "c"},
        {"type": "TOOL_CALL_CHUNK"},
        {"type": "TOOL_CALL_RESULT", "messageId": "m", "toolCallId": "c", "content": ""},
        {"type": "TOOL_CALL_RESULT", "messageId": "m", "toolCallId": "c", "content": []},
        {"type": "STATE_SNAPSHOT", "snapshot": null},
        {"type": "STATE_DELTA", "delta": []},
        {"type": "MESSAGES_SNAPSHOT", "messages": []},
        {"type": "ACTIVITY_SNAPSHOT", "messageId": "m", "activityType": "a", "content": {}},
        {"type": "ACTIVITY_DELTA", "messageId": "m", "activityType": "a", "patch": []},
        {"type": "REASONING_START", "messageId": "m"},
        {"type": "REASONING_MESSAGE_START", "messageId": "m", "role": "reasoning"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "m", "delta": ""},
        {"type": "REASONING_MESSAGE_END", "messageId": "m"},
        {"type": "REASONING_MESSAGE_CHUNK"},
        {"type": "REASONING_END", "messageId": "m"},
        {"type": "REASONING_ENCRYPTED_VALUE", "subtype": "message", "entityId": "m", "encryptedValue": "e"},
        {"type": "SUBAGENT_STARTED", "subagentRunId": "sub", "name": "n"},
        {"type": "SUBAGENT_FINISHED", "subagentRunId": "sub"},
        {"type": "SUBAGENT_ERROR", "subagentRunId": "sub", "message": ""},
        {"type": "RAW", "event": null},
        {"type": "CUSTOM", "name": "n", "value": null},
    ]);
    events.as_array().unwrap().clone()
}
