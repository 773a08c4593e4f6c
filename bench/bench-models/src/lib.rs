//! A stream of chat completions, for whoever reads it.

/// Words of an answer in so many chunks, each as it comes over the line.
pub fn stream(chunks: usize) -> Vec<Vec<u8>> {
    let frame = |delta: &str, finish: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1794779228,\"model\":\"gpt-5\",\
             \"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish}}}]}}\n\n"
        )
        .into_bytes()
    };
    let mut frames = vec![frame("{\"role\":\"assistant\",\"content\":\"\"}", "null")];
    frames.extend((0..chunks).map(|at| frame(&format!("{{\"content\":\"word {at} \"}}"), "null")));
    frames.push(frame("{}", "\"stop\""));
    frames.push(
        b"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1794779228,\"model\":\"gpt-5\",\
          \"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":50,\"total_tokens\":60}}\n\n"
            .to_vec(),
    );
    frames.push(b"data: [DONE]\n\n".to_vec());
    frames
}

/// The words that the stream says.
pub fn said(chunks: usize) -> String {
    (0..chunks).map(|at| format!("word {at} ")).collect()
}
