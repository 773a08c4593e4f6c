//! The studio: the pages that come with the server, and the guide. Nothing of anybody is in them, so nobody is asked who
//! they are; all that they show comes over the routes that others use too.

use std::hash::Hasher;

use axum::Router;
use axum::extract::Path;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use siphasher::sip::SipHasher13;

use crate::gate::STUDIO;
use crate::problem::Problem;

include!(concat!(env!("OUT_DIR"), "/studio_files.rs"));

/// What every file is sent with: it may load what this server has, and nothing else; nobody puts it into a frame.
const HEADERS: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-cache"),
];

/// Where people are sent back to when they signed in at a service. Its address has a code in it, which nobody keeps.
const SIGNED_IN: &str = "signed-in.html";

/// The routes of the studio.
pub(crate) fn routes(base: &str) -> Router {
    let home = format!("{base}{STUDIO}/");
    let to_it = move || {
        let to_it = Redirect::to(&home);
        async move { to_it }
    };
    Router::new()
        .route(&format!("{base}/"), get(to_it.clone()))
        .route(&format!("{base}{STUDIO}"), get(to_it))
        .route(&format!("{base}{STUDIO}/"), get(async |headers| serve("index.html", &headers)))
        .route(
            &format!("{base}{STUDIO}/{{*file}}"),
            get(async |Path(file): Path<String>, headers: HeaderMap| serve(&file, &headers)),
        )
}

/// A file of the studio, or a page of the guide.
fn serve(name: &str, headers: &HeaderMap) -> Result<Response, Problem> {
    if name == "docs/index.json" {
        return Ok(file(name, contents().to_string().into_bytes(), headers));
    }
    let (table, name) = match name.strip_prefix("docs/") {
        Some(page) => (PAGES, page),
        None => (FILES, name),
    };
    let found = table.iter().find(|(known, _)| *known == name || known.strip_suffix(".html") == Some(name));
    let (name, bytes) = found.ok_or_else(|| Problem::not_found("page"))?;
    Ok(file(name, *bytes, headers))
}

/// A file as it is sent, or word that the one that the browser has is still good.
fn file<B: AsRef<[u8]> + IntoResponse>(name: &str, bytes: B, headers: &HeaderMap) -> Response {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes.as_ref());
    let tag = format!("\"{:016x}\"", hasher.finish());
    let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response =
        if is_known { StatusCode::NOT_MODIFIED.into_response() } else { bytes.into_response() };
    let all = response.headers_mut();
    for (name, value) in HEADERS {
        all.insert(name, HeaderValue::from_static(value));
    }
    all.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind(name)));
    if name == SIGNED_IN {
        all.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        all.insert(header::ETAG, tag);
    }
    response
}

/// What a file is, by the ending of its name.
fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("md") => "text/markdown; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    }
}

/// The pages of the guide: their names, and what they are called.
fn contents() -> Value {
    let pages = PAGES.iter().filter_map(|(file, bytes)| {
        let name = file.strip_suffix(".md")?;
        let first = std::str::from_utf8(bytes).ok()?.lines().next().unwrap_or_default();
        let title = first.strip_prefix("# ").map_or_else(|| in_words(name), str::to_owned);
        Some(json!({"name": name, "title": title}))
    });
    pages.collect()
}

/// A name as a title, for a page that has none.
fn in_words(name: &str) -> String {
    let mut letters = name.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect::<String>().replace('-', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_listed_with_their_heading_or_else_their_name() {
        let listed = contents();
        let title = |name: &str| {
            let page = listed.as_array().unwrap().iter().find(|page| page["name"] == name);
            page.unwrap()["title"].as_str().unwrap().to_owned()
        };
        assert_eq!(title("layers"), "Layers and prebuilt handlers");
        assert_eq!(title("models/openai"), "OpenAI");
        assert_eq!(in_words("session-and-state"), "Session and state");
    }

    #[test]
    fn every_file_of_the_studio_is_sent_as_what_it_is() {
        for (name, _) in FILES {
            assert_ne!(
                kind(name),
                kind("unknown"),
                "{name} has an ending that nobody knows: add it to `kind`"
            );
        }
    }
}
