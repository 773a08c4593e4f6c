//! Services of others at paths of the server.

use axum::routing::any;
use umbel::ErrorKind;
use umbel_server::{ProtectedResource, Server};

use crate::desk::{offered, talker};

#[test]
fn paths_that_meet_are_refused_when_the_server_is_built() {
    let protected =
        || ProtectedResource::new("https://agents.example/mcp").authorization_server("https://login.example");
    let server =
        || Server::new().studio(true).protected_resource(protected()).agent("/chat", offered(talker("hi")));
    let service = || any(async || "hi");
    server().mount("/mcp", service()).mount("/chat/more", service()).build().unwrap();
    for path in [
        "/",
        "/chat",
        "/chat/threads",
        "/chat/graph",
        "/chat/threads/{id}",
        "/health",
        "/studio",
        "/studio/x",
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
        "/:name",
        "/{name",
    ] {
        let refused = server().mount(path, service()).build().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Build, "{path}");
    }
    let twice = server().mount("/mcp", service()).mount("mcp/", service()).build().unwrap_err();
    assert_eq!(twice.message(), "the path `/mcp` is taken: choose another");
    let below = server().agent("/chat/threads", offered(talker("hi"))).build().unwrap_err();
    assert_eq!(below.message(), "the path `/chat/threads` is taken: choose another");
    server().agent("/", offered(talker("hi"))).build().unwrap();
    Server::new().mount("/", service()).build().unwrap();
}
