//! Gemini on Vertex, and the tokens of Google Cloud.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use futures::StreamExt;
use ring::signature::{KeyPair, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use serde_json::{Value, json};
use umbel_core::{Content, Error, ErrorKind, Model, ModelErrorKind};
use umbel_models::{GoogleCredentials, HttpModel, Tape, TokenSource, model_with};

use crate::server::{Act, Server, answer};
use crate::support::{body, content, request, whole};

/// A key of nobody, made for these tests.
const KEY: &str = include_str!("../data/service_account_key.pem");

const ANSWER: &str =
    r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"Hello"}]},"finishReason":"STOP"}]}"#;

fn token(secret: &str, seconds: u32) -> Act {
    let body = json!({"access_token": secret, "expires_in": seconds, "token_type": "Bearer"}).to_string();
    Act::Send(answer("200 OK", "content-type: application/json\r\n", &body))
}

fn account(server: &str) -> String {
    json!({"type": "service_account", "project_id": "p-1", "private_key_id": "k1", "private_key": KEY,
           "client_email": "robot@p-1.example", "token_uri": format!("{server}/token")})
    .to_string()
}

fn person(server: &str) -> String {
    json!({"type": "authorized_user", "client_id": "id.example", "client_secret": "s3cret&more",
           "refresh_token": "1//refresh", "quota_project_id": "q-1", "token_uri": format!("{server}/token")})
    .to_string()
}

/// A model on Vertex, in an environment with these variables.
fn vertex(variables: &[(&str, &str)]) -> HttpModel {
    let variables: Vec<(String, String)> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let find =
        move |wanted: &str| variables.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
    model_with("vertex/gemini-2.5-flash", find).unwrap()
}

async fn ask(model: &HttpModel, stream: bool) -> Vec<umbel_core::Result<umbel_core::Chunk>> {
    let mut request = request([Content::user("hi")]);
    request.stream = stream;
    model.generate(&request).collect().await
}

#[tokio::test]
async fn a_service_account_signs_for_a_token_and_keeps_it() {
    let tokens = Server::start([token("ya29.one", 3600)]).await;
    let models = Server::answering("200 OK", "content-type: application/json\r\n", ANSWER).await;
    let folder = std::env::temp_dir().join(format!("umbel-vertex-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("account.json");
    std::fs::write(&file, account(&tokens.url)).unwrap();
    let model = vertex(&[
        ("GOOGLE_APPLICATION_CREDENTIALS", file.to_str().unwrap()),
        ("GOOGLE_CLOUD_LOCATION", "europe-west4"),
        ("GOOGLE_VERTEX_BASE_URL", &format!("{}/v1", models.url)),
    ]);
    std::fs::remove_dir_all(&folder).unwrap();
    for stream in [false, true] {
        assert_eq!(whole(&ask(&model, stream).await).content.as_ref().unwrap().text(), "Hello");
    }
    let sent = models.requests();
    let place = "/v1/projects/p-1/locations/europe-west4/publishers/google/models/gemini-2.5-flash";
    assert!(sent[0].starts_with(&format!("POST {place}:generateContent HTTP")), "{}", sent[0]);
    assert!(sent[1].starts_with(&format!("POST {place}:streamGenerateContent?alt=sse HTTP")), "{}", sent[1]);
    assert!(sent.iter().all(|sent| sent.contains("authorization: Bearer ya29.one\r\n")), "{sent:?}");

    let asked = tokens.requests();
    assert_eq!(asked.len(), 1, "a token that is good is kept");
    let (head, form) = asked[0].split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /token HTTP"), "{head}");
    assert!(head.contains("content-type: application/x-www-form-urlencoded"), "{head}");
    let assertion = form
        .strip_prefix("grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=")
        .unwrap();
    let (signed, signature) = assertion.rsplit_once('.').unwrap();
    let (header, claims) = signed.split_once('.').unwrap();
    let decoded = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap();
    let header: Value = serde_json::from_slice(&decoded(header)).unwrap();
    assert_eq!(header, json!({"alg": "RS256", "typ": "JWT", "kid": "k1"}));
    let claims: Value = serde_json::from_slice(&decoded(claims)).unwrap();
    assert_eq!(
        (&claims["iss"], &claims["aud"]),
        (&json!("robot@p-1.example"), &json!(format!("{}/token", tokens.url)))
    );
    assert_eq!(claims["scope"], "https://www.googleapis.com/auth/cloud-platform");
    assert_eq!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(), 3600);
    let der: String = KEY.lines().filter(|line| !line.starts_with('-')).collect();
    let key = RsaKeyPair::from_pkcs8(&STANDARD.decode(der).unwrap()).unwrap();
    let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key.public_key());
    public.verify(signed.as_bytes(), &decoded(signature)).unwrap();
}

#[tokio::test]
async fn a_person_who_has_signed_in_gives_the_refresh_token() {
    let tokens = Server::start([token("ya29.two", 3600)]).await;
    let credentials = GoogleCredentials::from_json(&person(&tokens.url)).unwrap();
    assert_eq!(credentials.project(), Some("q-1"));
    assert_eq!(credentials.token().await.unwrap(), "ya29.two");
    let form = "grant_type=refresh_token&client_id=id.example&client_secret=s3cret%26more&refresh_token=1%2F%2Frefresh";
    assert!(tokens.requests()[0].ends_with(&format!("\r\n\r\n{form}")), "{:?}", tokens.requests());
}

#[tokio::test]
async fn the_machine_is_asked_if_there_is_nothing_else() {
    let machine = Server::start([token("ya29.machine", 3600)]).await;
    let models = Server::answering("200 OK", "content-type: application/json\r\n", ANSWER).await;
    let host = machine.url.strip_prefix("http://").unwrap();
    let model = vertex(&[
        ("GCE_METADATA_HOST", host),
        ("GOOGLE_CLOUD_PROJECT", "p-2"),
        ("GOOGLE_VERTEX_BASE_URL", &models.url),
    ]);
    ask(&model, false).await.pop().unwrap().unwrap();
    let asked = &machine.requests()[0];
    assert!(
        asked.starts_with("GET /computeMetadata/v1/instance/service-accounts/default/token HTTP"),
        "{asked}"
    );
    assert!(asked.contains("metadata-flavor: Google"), "{asked}");
    let sent = &models.requests()[0];
    assert!(sent.starts_with("POST /projects/p-2/locations/global/publishers/"), "{sent}");
    assert!(sent.contains("authorization: Bearer ya29.machine\r\n"), "{sent}");
}

#[tokio::test]
async fn the_file_of_gcloud_is_found_and_another_source_can_be_given() {
    let tokens = Server::start([token("ya29.gcloud", 3600), token("ya29.given", 3600)]).await;
    let models = Server::answering("200 OK", "content-type: application/json\r\n", ANSWER).await;
    let folder = std::env::temp_dir().join(format!("umbel-gcloud-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("application_default_credentials.json"), person(&tokens.url)).unwrap();
    let model =
        vertex(&[("CLOUDSDK_CONFIG", folder.to_str().unwrap()), ("GOOGLE_VERTEX_BASE_URL", &models.url)]);
    std::fs::remove_dir_all(&folder).unwrap();
    ask(&model, false).await.pop().unwrap().unwrap();
    let given = GoogleCredentials::from_json(&account(&tokens.url)).unwrap();
    ask(&model.token_source(given).unwrap(), false).await.pop().unwrap().unwrap();
    let sent = models.requests();
    assert!(
        sent[0].starts_with("POST /projects/q-1/") && sent[0].contains("Bearer ya29.gcloud\r\n"),
        "{sent:?}"
    );
    assert!(sent[1].contains("Bearer ya29.given\r\n"), "{sent:?}");
}

#[tokio::test]
async fn a_token_is_asked_for_once_at_a_time_and_anew_shortly_before_it_expires() {
    let tokens = Server::start([token("first", 3600)]).await;
    let credentials = GoogleCredentials::from_json(&account(&tokens.url)).unwrap();
    let all = futures::future::join_all((0..20).map(|_| {
        let credentials = credentials.clone();
        async move { credentials.token().await.unwrap() }
    }))
    .await;
    assert!(all.iter().all(|token| token == "first"));
    assert_eq!(tokens.requests().len(), 1);

    let short = Server::start([token("short", 60), token("long", 3600)]).await;
    let credentials = GoogleCredentials::from_json(&account(&short.url)).unwrap();
    let mut got = Vec::new();
    for _ in 0..3 {
        got.push(credentials.token().await.unwrap());
    }
    assert_eq!(got, ["short", "long", "long"]);
}

#[tokio::test]
async fn a_token_that_a_source_gave_does_not_come_back_in_errors_and_is_on_no_tape() {
    let tokens = Server::start([token("ya29.live", 3600)]).await;
    let refused = r#"{"error":{"code":401,"message":"bad token ya29.live","status":"UNAUTHENTICATED"}}"#;
    let stream = format!("data: {refused}\n\n");
    let models = Server::start([
        Act::Send(answer("401 No", "content-type: application/json\r\n", refused)),
        Act::Send(answer("200 OK", "content-type: text/event-stream\r\n", &stream)),
    ])
    .await;
    let tape = Tape::new();
    let model = vertex(&[("GOOGLE_CLOUD_PROJECT", "p-1"), ("GOOGLE_VERTEX_BASE_URL", &models.url)]);
    let source = GoogleCredentials::from_json(&person(&tokens.url)).unwrap();
    let model = model.token_source(source).unwrap().record(&tape);
    for _ in 0..2 {
        let error = ask(&model, true).await.pop().unwrap().unwrap_err();
        assert!(error.message().contains("bad token ***"), "{error}");
        assert!(!format!("{error:?}").contains("ya29.live"), "{error:?}");
    }
    assert_eq!(tape.len(), 2);
    assert!(!tape.to_json().contains("ya29.live"), "{}", tape.to_json());

    let tape = Tape::from_json(&tape.to_json()).unwrap();
    ask(&model.replay(&tape), true).await.pop().unwrap().unwrap_err();
    assert_eq!(tokens.requests().len(), 1, "what is played again needs no token");
}

async fn fail(credentials: &GoogleCredentials) -> Error {
    credentials.token().await.unwrap_err()
}

#[tokio::test]
async fn a_token_that_is_not_given_says_why_without_secrets_and_is_asked_for_again() {
    let refused = r#"{"error":"invalid_grant","error_description":"no 1//refresh with s3cret&more"}"#;
    let tokens = Server::start([
        Act::Send(answer("400 Bad Request", "", refused)),
        Act::Send(answer("503 Unavailable", "", "<html>")),
        Act::Send(answer("200 OK", "", "{}")),
        token("good", 3600),
    ])
    .await;
    let credentials = GoogleCredentials::from_json(&person(&tokens.url)).unwrap();
    let error = fail(&credentials).await;
    assert_eq!(error.kind(), ErrorKind::Model(ModelErrorKind::Auth));
    assert!(error.message().contains("invalid_grant: no *** with *** (400)"), "{error}");
    assert_eq!(fail(&credentials).await.kind(), ErrorKind::Model(ModelErrorKind::Overloaded));
    assert!(fail(&credentials).await.message().contains("no token in it"));
    assert_eq!(credentials.token().await.unwrap(), "good");
    let shown = format!("{credentials:?} {error:?}");
    assert!(!shown.contains("s3cret") && !shown.contains("1//refresh") && !shown.contains("good"), "{shown}");
    let account = GoogleCredentials::from_json(&account("http://127.0.0.1:1")).unwrap();
    assert_eq!(format!("{account:?}"), "GoogleCredentials(service account robot@p-1.example)");
    assert_eq!(fail(&account).await.kind(), ErrorKind::Model(ModelErrorKind::Transport));
}

#[test]
fn credentials_that_cannot_be_used_say_what_is_wrong_and_nothing_else() {
    let said = |text: &str| GoogleCredentials::from_json(text).unwrap_err().to_string();
    assert!(said("{").contains("no JSON object"));
    assert!(said(r#"{"type":"external_account"}"#).contains("`external_account`"));
    assert!(said(r#"{"type":"service_account"}"#).contains("`client_email` is missing"));
    let bad = r#"{"type":"service_account","client_email":"a","private_key":"top secret"}"#;
    assert!(said(bad).contains("`private_key` is no RSA key") && !said(bad).contains("top secret"));
    assert!(said(r#"{"type":"authorized_user","client_id":"a"}"#).contains("`client_secret` is missing"));
    let error = GoogleCredentials::from_file("/nowhere/account.json").unwrap_err();
    assert!(error.message().contains("/nowhere/account.json"), "{error}");
    assert!(format!("{:?}", GoogleCredentials::from_machine()).contains("metadata.google.internal"));
}

#[test]
fn ids_of_calls_are_not_sent() {
    let call =
        json!({"role": "model", "parts": [{"functionCall": {"id": "toolu_1", "name": "t", "args": {}}}]});
    let answer = json!({"role": "user", "parts": [{"functionResponse": {"id": "toolu_1", "name": "t", "response": {}}}]});
    let request = request([Content::user("hi"), content(call), content(answer)]);
    let written = body(&vertex(&[("GOOGLE_CLOUD_PROJECT", "p")]), &request);
    assert!(!written.to_string().contains("toolu_1"), "{written}");
    assert_eq!(written["contents"][2]["parts"][0]["functionResponse"]["name"], "t");
}

#[test]
fn labels_and_names_of_media_are_sent() {
    let model = vertex(&[("GOOGLE_CLOUD_PROJECT", "p")]);
    let mut request = request([content(json!({"role": "user", "parts": [
        {"inlineData": {"mimeType": "text/plain", "data": "YQ==", "displayName": "a"}}]}))]);
    Arc::make_mut(&mut request.config).labels.insert("team".to_owned(), json!("blue"));
    let written = body(&model, &request);
    assert_eq!(written["labels"], json!({"team": "blue"}));
    assert_eq!(written["contents"][0]["parts"][0]["inlineData"]["displayName"], "a");
    assert!(!Model::capabilities(&model).refuses_display_names);
}

#[tokio::test]
async fn models_of_others_and_tuned_ones_have_their_own_places() {
    let machine = Server::start([token("t", 3600)]).await;
    for (name, path) in [
        ("meta/llama-4", "/projects/p/locations/global/publishers/meta/models/llama-4:generateContent"),
        ("endpoints/7", "/projects/p/locations/global/endpoints/7:generateContent"),
        (
            "publishers/google/models/g",
            "/projects/p/locations/global/publishers/google/models/g:generateContent",
        ),
        ("projects/q/locations/l/endpoints/8", "/projects/q/locations/l/endpoints/8:generateContent"),
    ] {
        let models = Server::answering("200 OK", "content-type: application/json\r\n", ANSWER).await;
        let environment = |variable: &str| match variable {
            "GOOGLE_CLOUD_PROJECT" => Some("p".to_owned()),
            "GCE_METADATA_HOST" => Some(machine.url.replace("http://", "")),
            "GOOGLE_VERTEX_BASE_URL" => Some(models.url.clone()),
            _ => None,
        };
        ask(&model_with(&format!("vertex/{name}"), environment).unwrap(), false).await;
        let sent = models.requests();
        assert!(sent[0].starts_with(&format!("POST {path} HTTP")), "{sent:?}");
    }
}

#[tokio::test]
async fn a_key_is_sent_in_its_header_and_the_path_names_the_model() {
    for (name, key) in
        [("gemini/gemini-3-pro", "GEMINI_API_KEY"), ("google/models/gemini-3-pro", "GOOGLE_API_KEY")]
    {
        let models = Server::answering("200 OK", "content-type: application/json\r\n", ANSWER).await;
        let environment = |variable: &str| match variable {
            "GEMINI_BASE_URL" => Some(format!("{}/v1beta", models.url)),
            _ => (variable == key).then(|| "AIza-test".to_owned()),
        };
        let model = model_with(name, environment).unwrap();
        ask(&model, true).await;
        let sent = &models.requests()[0];
        assert!(
            sent.starts_with("POST /v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse HTTP"),
            "{sent}"
        );
        assert!(sent.contains("x-goog-api-key: AIza-test\r\n"), "{sent}");
    }
    let error = model_with("gemini/m", |_| None).unwrap_err();
    assert!(error.message().contains("GEMINI_API_KEY or GOOGLE_API_KEY"), "{error}");
}
