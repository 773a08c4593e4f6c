//! What clients are told about how to come by a token: OAuth 2.0 protected resource metadata, RFC 9728.

use http::{HeaderValue, Uri};
use serde_json::{Value, json};
use umbel_core::{Error, ErrorKind, Result};

/// Where such documents are found.
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// What clients are told about how to come by a token: which servers give them out, and for what. MCP clients look for it
/// when they are turned away.
///
/// It only tells. Whether a token is good, [`Server::auth`](crate::Server::auth) finds out.
#[derive(Clone, Debug)]
pub struct ProtectedResource {
    resource: String,
    servers: Vec<String>,
    scopes: Vec<String>,
}

impl ProtectedResource {
    /// What is protected, by its address as clients know it, such as `https://agents.example/mcp`.
    pub fn new(resource: impl Into<String>) -> Self {
        Self { resource: resource.into(), servers: Vec::new(), scopes: Vec::new() }
    }

    /// A server that gives out tokens, by its issuer's address.
    pub fn authorization_server(mut self, issuer: impl Into<String>) -> Self {
        self.servers.push(issuer.into());
        self
    }

    /// A scope that a client should ask for.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scopes.push(scope.into());
        self
    }

    /// Checks it, and finds where its document is.
    pub(crate) fn published(self) -> Result<Published> {
        let refuse = |what: &str| Err(Error::new(ErrorKind::Build, format!("the protected resource {what}")));
        let Ok(uri) = self.resource.parse::<Uri>() else { return refuse("is no address") };
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return refuse("needs a whole address, such as https://agents.example/mcp");
        };
        if self.servers.is_empty() {
            return refuse("needs an authorization server: see `authorization_server`");
        }
        let path = format!("{WELL_KNOWN}{}", uri.path().trim_end_matches('/'));
        let mut hint = format!("resource_metadata=\"{scheme}://{authority}{path}\"");
        if !self.scopes.is_empty() {
            hint = format!("{hint}, scope=\"{}\"", self.scopes.join(" "));
        }
        let [bare, invalid] = [format!("Bearer {hint}"), format!("Bearer error=\"invalid_token\", {hint}")];
        let (Ok(bare), Ok(invalid)) = (HeaderValue::try_from(bare), HeaderValue::try_from(invalid)) else {
            return refuse("has signs that a header cannot hold");
        };
        let mut document = json!({
            "resource": self.resource,
            "authorization_servers": self.servers,
            "bearer_methods_supported": ["header"],
        });
        if let (Some(document), false) = (document.as_object_mut(), self.scopes.is_empty()) {
            document.insert("scopes_supported".to_owned(), self.scopes.into());
        }
        let mut paths = vec![WELL_KNOWN.to_owned()];
        if path != WELL_KNOWN {
            paths.push(path);
        }
        Ok(Published { paths, document, bare, invalid })
    }
}

/// The same, as it is served.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    /// Where the document is.
    pub(crate) paths: Vec<String>,
    pub(crate) document: Value,
    /// What is told to who has no token.
    pub(crate) bare: HeaderValue,
    /// What is told to who has one that is not good.
    pub(crate) invalid: HeaderValue,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_found_by_the_path_of_what_is_protected() {
        let protected = ProtectedResource::new("https://agents.example/a/mcp/")
            .authorization_server("https://login.example")
            .scope("agents");
        let published = protected.published().unwrap();
        let path = "/.well-known/oauth-protected-resource/a/mcp";
        assert_eq!(published.paths, ["/.well-known/oauth-protected-resource", path]);
        let hint = format!("resource_metadata=\"https://agents.example{path}\", scope=\"agents\"");
        assert_eq!(published.bare, format!("Bearer {hint}"));
        assert_eq!(published.invalid, format!("Bearer error=\"invalid_token\", {hint}"));
        assert_eq!(published.document["authorization_servers"], json!(["https://login.example"]));
        assert_eq!(published.document["scopes_supported"], json!(["agents"]));
    }

    #[test]
    fn what_cannot_be_published_is_refused() {
        let with_server = |resource: &str| ProtectedResource::new(resource).authorization_server("https://a");
        for bad in [
            with_server("/mcp"),
            with_server("not an address"),
            ProtectedResource::new("https://a/mcp"),
            with_server("https://a/mcp").scope("a\nb"),
        ] {
            assert_eq!(bad.published().unwrap_err().kind(), ErrorKind::Build);
        }
    }
}
