//! OpenAPI documents.

#![no_main]

use umbel_tools::OpenApi;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(service) = OpenApi::read(text) {
        let _ = service.build();
    }
});
