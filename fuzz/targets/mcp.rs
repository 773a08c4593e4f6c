//! Messages of MCP servers and clients, and the schemas in them.

#![no_main]

use umbel_mcp::client::fuzzing;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::message(bytes);
    let at = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (tools, result) = bytes.split_at(at);
    fuzzing::tools(tools, result);
});
