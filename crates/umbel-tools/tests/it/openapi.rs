//! Services by their documents, asked for real.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use umbel_core::{BoxFuture, Confirm, Tool};
use umbel_tools::{HttpLimits, Lookup, OpenApi, OpenApiTools, Secret};

use crate::http::{Server, answer};
use crate::{call_and_log, error};

fn document(server: &str) -> Value {
    json!({
        "openapi": "3.0.3",
        "servers": [{"url": format!("{server}/v1/")}],
        "paths": {
            "/pets/{id}": {
                "parameters": [{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}],
                "get": {"operationId": "get pet", "tags": ["read"], "parameters": [
                    {"name": "tag", "in": "query", "schema": {"type": "array"}},
                    {"name": "list", "in": "query", "explode": false, "schema": {"type": "array"}},
                    {"name": "deep", "in": "query", "style": "deepObject", "schema": {"type": "object"}},
                    {"name": "id", "in": "query", "schema": {"type": "integer"}},
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                    {"name": "Authorization", "in": "header", "schema": {"type": "string"}},
                    {"name": "session", "in": "cookie", "schema": {"type": "string"}},
                    {"name": "api_key", "in": "query", "required": true, "schema": {"type": "string"}},
                ]},
                "put": {"operationId": "putPet", "requestBody": {"required": true, "content": {
                    "application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}}},
                "delete": {},
            },
            "/upload": {"post": {"operationId": "upload", "tags": ["write"], "requestBody": {
                "required": true, "content": {"multipart/form-data": {}}}}},
        },
        "components": {"schemas": {"Pet": {"type": "object", "required": ["id", "name"], "properties": {
            "id": {"type": "integer", "readOnly": true},
            "name": {"type": "string", "nullable": true},
            "age": {"type": "number", "minimum": 0, "exclusiveMinimum": true},
            "friends": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}},
        }}}},
    })
}

fn tool(service: &OpenApiTools, name: &str) -> Arc<dyn Tool> {
    service
        .tools()
        .iter()
        .find(|tool| tool.spec().name == name)
        .unwrap_or_else(|| panic!("{service:?}"))
        .clone()
}

async fn echo() -> Server {
    Server::start(|request| answer(200, "application/json", &json!({"asked": request}).to_string())).await
}

fn service(server: &Server) -> OpenApi {
    OpenApi::new(document(&format!("http://{}", server.host()))).allow_private(server.host())
}

#[test]
fn operations_become_tools_with_one_schema_each() {
    let service =
        OpenApi::new(document("https://pets.example.org")).prefix("pets_").query_key("api_key", "k").build();
    let service = service.unwrap();
    let names: Vec<_> = service.tools().iter().map(|tool| tool.spec().name.to_string()).collect();
    assert_eq!(names, ["pets_get_pet", "pets_putPet", "pets_delete_pets_id"]);
    assert_eq!(service.skipped()[0].0, "pets_upload");
    assert!(service.skipped()[0].1.contains("only JSON"));
    let get = tool(&service, "pets_get_pet").spec().clone();
    assert!(get.read_only && get.idempotent);
    assert_eq!(get.description, "GET /pets/{id}");
    let arguments: Vec<_> = get.parameters["properties"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(arguments, ["id", "tag", "list", "deep", "id_query", "X-Trace", "session"]);
    assert_eq!(get.parameters["required"], json!(["id"]));
    let put = tool(&service, "pets_putPet").spec().clone();
    assert!(!put.read_only && put.idempotent);
    let pet = json!({"type": "object", "required": ["name"], "properties": {
        "name": {"type": ["string", "null"]},
        "age": {"type": "number", "exclusiveMinimum": 0},
        "friends": {"type": "array", "items": {"description": "The same again.", "type": "object"}},
    }});
    assert_eq!(put.parameters["properties"]["body"], pet);
    assert_eq!(put.parameters["required"], json!(["id", "body"]));
}

#[tokio::test]
async fn a_call_is_sent_as_the_document_says() {
    let server = echo().await;
    let service = service(&server).query_key("api_key", "k-123456").build().unwrap();
    let args = json!({
        "id": "a/b ?#%é", "tag": ["x", "y z"], "list": [1, 2], "deep": {"a": 1}, "id_query": 7, "X-Trace": "t",
        "session": "s;s", "Authorization": "mine",
    });
    let (said, _) = call_and_log(tool(&service, "get_pet"), args).await;
    assert_eq!(said["status"], 200);
    let asked = server.last();
    let path =
        "/v1/pets/a%2Fb%20%3F%23%25%C3%A9?tag=x&tag=y+z&list=1%2C2&deep%5Ba%5D=1&id=7&api_key=k-123456";
    assert!(asked.starts_with(&format!("GET {path} HTTP/1.1\r\n")), "{asked}");
    assert!(asked.contains("x-trace: t\r\n") && asked.contains("cookie: session=s%3Bs\r\n"), "{asked}");
    assert!(!asked.contains("mine"), "{asked}");
    let (said, _) = call_and_log(tool(&service, "putPet"), json!({"id": "1", "body": {"name": "Ada"}})).await;
    assert_eq!(said["status"], 200);
    let asked = server.last();
    assert!(asked.starts_with("PUT /v1/pets/1?") && asked.ends_with("\r\n\r\n{\"name\":\"Ada\"}"), "{asked}");
    assert!(asked.contains("content-type: application/json\r\n"), "{asked}");
}

#[tokio::test]
async fn a_value_cannot_leave_its_place_in_the_path() {
    let server = echo().await;
    let service = service(&server).build().unwrap();
    let steps = [
        "../admin",
        "../../admin",
        "a/../b",
        "..\\..",
        "%2e%2e",
        "..%2f",
        "%2E%2e%2fadmin",
        "%252e%252e%252f",
    ];
    for id in ["..", ".", ""].into_iter().chain(steps) {
        let (said, _) = call_and_log(tool(&service, "delete_pets_id"), json!({"id": id})).await;
        assert!(error(&said).contains("a part of the path is"), "{said}");
    }
    for id in ["...", "a..b", ".%2", "@evil.example", "//evil.example"] {
        call_and_log(tool(&service, "delete_pets_id"), json!({"id": id})).await;
        assert!(server.last().starts_with("DELETE /v1/pets/"), "{id}: {}", server.last());
        assert_eq!(server.last().split(' ').nth(1).unwrap().matches('/').count(), 3, "{id}");
    }
    let asked = server.count();
    let (said, _) = call_and_log(tool(&service, "delete_pets_id"), json!({})).await;
    assert_eq!(error(&said), "the mandatory argument `id` is missing");
    let (said, _) =
        call_and_log(tool(&service, "get_pet"), json!({"id": "1", "api_key": "k", "X-Trace": "a\r\nb: c"}))
            .await;
    assert!(error(&said).contains("characters that headers cannot have"), "{said}");
    assert_eq!(server.count(), asked);
}

#[tokio::test]
async fn secrets_go_to_the_service_and_nowhere_else() {
    let server = echo().await;
    let (token, key) = (Secret::new("token-abcdef"), Secret::new("key-abcdef"));
    let service = service(&server)
        .bearer(&token)
        .header("X-Key", key.clone())
        .query_key("api_key", "query-abcdef")
        .build();
    let service = service.unwrap();
    assert!(!format!("{service:?}").contains("abcdef"));
    let (said, log) = call_and_log(tool(&service, "get_pet"), json!({"id": "1"})).await;
    let asked = server.last();
    assert!(asked.contains("authorization: Bearer token-abcdef\r\n"), "{asked}");
    assert!(asked.contains("x-key: key-abcdef\r\n") && asked.contains("api_key=query-abcdef"), "{asked}");
    // The server sent all of it back.
    assert!(said["body"]["asked"].as_str().unwrap().contains("[secret]"), "{said}");
    assert!(!log.contains("abcdef"), "{log}");
    // An error that knows the address does not tell it.
    let gone = OpenApi::new(document("http://127.0.0.1:1")).allow_private("127.0.0.1:1");
    let gone = gone.query_key("api_key", "query-abcdef").build().unwrap();
    let (said, log) = call_and_log(tool(&gone, "get_pet"), json!({"id": "1"})).await;
    assert!(error(&said).starts_with("the connection failed"), "{said}");
    assert!(!log.contains("abcdef"), "{log}");
}

#[tokio::test]
async fn secrets_that_come_back_in_another_form_or_cut_are_not_shown() {
    let environment = |_: &str| Some("abc/DEF+ghi".to_owned());
    let header = Secret::expand("Bearer ${TOKEN}", environment).unwrap();
    for (kind, body) in [
        ("application/json", r#"{"said": "abc\/DEF+ghi"}"#),
        ("application/json", r#"{"abc\u002fDEF\u002bghi": 1}"#),
        ("text/plain", "asked for /pets?key=abc%2FDEF%2Bghi"),
        ("text/plain", "the token is abc/DEF+ghi"),
        ("text/plain", "................................................................abc/DEF+ghi"),
    ] {
        let server = Server::start(move |_| answer(200, kind, body)).await;
        let limits = HttpLimits { bytes: 70, ..HttpLimits::default() };
        let service = service(&server).header("Authorization", header.clone()).limits(limits).build();
        let (said, log) = call_and_log(tool(&service.unwrap(), "delete_pets_id"), json!({"id": "1"})).await;
        assert_eq!(said["status"], 200);
        for part in ["DEF", "abc/", "ghi"] {
            assert!(!log.contains(part), "{body}: {said}");
        }
    }
}

#[tokio::test]
async fn names_are_looked_up_as_it_was_told() {
    struct Here;
    impl Lookup for Here {
        fn lookup(&self, _: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
            Box::pin(async { Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]) })
        }
    }
    let server = echo().await;
    let host = format!("pets.invalid:{}", server.port);
    let service = OpenApi::new(document(&format!("http://{host}"))).allow_private(host).lookup(Here);
    let service = service.build().unwrap();
    let (said, _) = call_and_log(tool(&service, "delete_pets_id"), json!({"id": "1"})).await;
    assert_eq!(said["status"], 200, "{said}");
}

#[test]
fn a_password_in_an_address_is_refused_and_not_shown() {
    for server in
        ["https://ann:hunter2@pets.example.org", "ftp://ann:hunter2@pets.example.org", "https://ann:hunter2@"]
    {
        let refused = OpenApi::new(document(server)).build().unwrap_err();
        assert!(!refused.message().contains("hunter2"), "{}", refused.message());
    }
}

#[tokio::test]
async fn secrets_do_not_follow_a_redirect_to_another_host() {
    let other = echo().await;
    let to = format!("http://{}/there", other.host());
    let server = Server::start(move |request| match request.contains("/here") {
        true => answer(200, "text/plain", "here"),
        false if request.contains("/pets/same") => {
            "HTTP/1.1 302 X\r\nlocation: /here\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned()
        }
        false => {
            format!("HTTP/1.1 302 X\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        }
    })
    .await;
    let service =
        service(&server).allow_private(other.host()).bearer(&Secret::new("token-abcdef")).build().unwrap();
    let get = tool(&service, "get_pet");
    call_and_log(get.clone(), json!({"id": "same", "api_key": "k"})).await;
    assert!(
        server.last().starts_with("GET /here ") && server.last().contains("token-abcdef"),
        "{}",
        server.last()
    );
    call_and_log(get, json!({"id": "other", "api_key": "k"})).await;
    assert!(
        other.last().starts_with("GET /there ") && !other.last().contains("token-abcdef"),
        "{}",
        other.last()
    );
    // What is not just read is not sent a second time.
    let (said, _) = call_and_log(tool(&service, "delete_pets_id"), json!({"id": "other"})).await;
    assert_eq!((said["status"].clone(), other.count()), (json!(302), 1));
}

#[tokio::test]
async fn a_service_is_asked_at_its_own_hosts_alone() {
    let server = echo().await;
    let inside = OpenApi::new(document(&format!("http://{}", server.host()))).build().unwrap();
    let (said, _) = call_and_log(tool(&inside, "get_pet"), json!({"id": "1", "api_key": "k"})).await;
    assert!(error(&said).contains("not public"), "{said}");
    let (said, _) =
        call_and_log(tool(&service(&server).build().unwrap(), "get_pet"), json!({"id": "1", "api_key": "k"}))
            .await;
    assert_eq!(said["status"], 200);
    assert_eq!(server.count(), 1);
}

#[tokio::test]
async fn limits_hold_for_services_too() {
    let server = Server::start(|_| String::new()).await;
    let limits = HttpLimits { time: Duration::from_millis(50), ..HttpLimits::default() };
    let service = service(&server).limits(limits).build().unwrap();
    let (said, _) = call_and_log(tool(&service, "delete_pets_id"), json!({"id": "1"})).await;
    assert!(error(&said).starts_with("no answer within 0.05 s"), "{said}");
}

#[test]
fn operations_are_chosen_by_id_and_tag() {
    let choose = |change: fn(OpenApi) -> OpenApi| {
        let service = change(OpenApi::new(document("https://pets.example.org"))).build();
        service.map(|service| {
            service.tools().iter().map(|tool| tool.spec().name.to_string()).collect::<Vec<_>>()
        })
    };
    assert_eq!(choose(|all| all.tag("read")).unwrap(), ["get_pet"]);
    assert_eq!(choose(|all| all.operation("putPet").tag("read")).unwrap(), ["get_pet", "putPet"]);
    let none = choose(|all| all.operation("putpet")).unwrap_err();
    assert!(
        none.message().contains("no operation `putpet`. There are: delete_pets_id, get pet, putPet"),
        "{none}"
    );
    assert!(choose(|all| all.tag("x")).unwrap_err().message().contains("no tag `x`"));
    // Named, it has to work.
    assert!(choose(|all| all.operation("upload")).unwrap_err().message().contains("only JSON can be sent"));
}

#[test]
fn people_are_asked_about_all_calls_or_about_changes() {
    let asked = |change: fn(OpenApi) -> OpenApi| {
        let service = change(OpenApi::new(document("https://pets.example.org"))).build().unwrap();
        let is_asked = |tool: &Arc<dyn Tool>| matches!(tool.spec().confirm, Confirm::Always);
        service.tools().iter().map(is_asked).collect::<Vec<_>>()
    };
    assert_eq!(asked(|service| service), [false, false, false]);
    assert_eq!(asked(OpenApi::confirm_changes), [false, true, true]);
    assert_eq!(asked(OpenApi::confirm), [true, true, true]);
}

#[test]
fn a_key_is_not_sent_where_others_can_read_it() {
    let build = |server: &str| {
        OpenApi::new(document("https://a.example")).server(server).bearer(&Secret::new("t")).build()
    };
    assert!(build("https://pets.example.org").is_ok());
    let error = build("http://pets.example.org").unwrap_err();
    assert!(error.message().starts_with("`pets.example.org` would get a key over http"), "{error}");
}
