//! The stores that live in the process.

mod sessions {
    umbel_stores::session_store_contract!(async { umbel_core::InMemorySessions::new() });
}

mod artifacts {
    umbel_stores::artifact_store_contract!(async { umbel_core::InMemoryArtifacts::new() });
}

mod memory {
    umbel_stores::memory_store_contract!(async { umbel_core::InMemoryMemory::new() });
}

mod credentials {
    umbel_stores::credential_store_contract!(async { umbel_core::InMemoryCredentials::new() });
}
