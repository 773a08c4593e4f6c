//! Tokens of an authorization server: how they come about, are renewed and given up, and what it may do wrong.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use umbel_core::{
    AuthAnswer, AuthMethod, AuthRequest, Credential, Error, HttpPlace, PlainAuth, Result, Standing,
};
use umbel_tools::{HttpLimits, OAuth, OAuthClient, OAuthMethod, Secret};

use crate::oauth_server::{
    ACCOUNT, CLIENT, CLIENT_KEY, CLIENT_SECRET, Fault, KEY_CLIENT, OAuthServer, PRIVATE_KEY, PUBLIC_CLIENT,
    REDIRECT, SUBJECT_TOKEN, form,
};

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

fn client() -> OAuthClient {
    OAuthClient::new(CLIENT).secret(Secret::new(CLIENT_SECRET))
}

fn code(server: &OAuthServer, client: OAuthClient) -> OAuth {
    OAuth::code(client, server.url("/authorize"), server.url("/token"), REDIRECT)
        .revocation_url(server.url("/revoke"))
        .scope("read")
        .scope("write")
        .allow_private(server.host())
}

fn open_id(server: &OAuthServer) -> OAuthMethod {
    OAuth::open_id(client(), server.url(""), REDIRECT).allow_private(server.host()).build().unwrap()
}

/// What people are shown, and what is kept for their answer.
async fn asked(method: &OAuthMethod) -> (AuthRequest, String) {
    let request = method.ask(now()).await.unwrap();
    let link = request.shown["oauth2"]["authUri"].as_str().unwrap().to_owned();
    (request, link)
}

/// A person signs in: what comes of it.
async fn signed_in(server: &OAuthServer, method: &OAuthMethod) -> Result<Credential> {
    let (request, link) = asked(method).await;
    let back = server.sign_in(&link).await;
    let given = request.expects.check(&json!(back)).unwrap();
    method.exchange(AuthAnswer { given, pending: request.pending }, now()).await
}

/// The token of a credential.
fn token(method: &OAuthMethod, credential: &Credential) -> String {
    let http = method.http(credential).unwrap();
    assert_eq!((http.place, http.name.as_str()), (HttpPlace::Header, "Authorization"));
    http.expose().strip_prefix("Bearer ").unwrap().to_owned()
}

/// The words of an error, which hold no secret.
fn words<T: std::fmt::Debug>(failed: Result<T, Error>) -> String {
    let error = failed.unwrap_err();
    let all = format!("{error} {error:?}");
    for secret in ["CANARY", CLIENT_SECRET, "%C3%A4"] {
        assert!(!all.contains(secret), "{all}");
    }
    error.message().to_owned()
}

#[tokio::test]
async fn a_person_signs_in_with_pkce_and_state() {
    let server = OAuthServer::start().await;
    let method = code(&server, client()).build().unwrap();
    assert_eq!(method.standing(None, now()), Standing::Ask);
    let (request, link) = asked(&method).await;
    let query = form(link.split_once('?').unwrap().1);
    let shown = &request.shown["oauth2"];
    assert_eq!(query["scope"], "read write");
    assert_eq!((query["response_type"].as_str(), query["redirect_uri"].as_str()), ("code", REDIRECT));
    assert_eq!(
        (query["state"].as_str(), &shown["redirectUri"]),
        (shown["state"].as_str().unwrap(), &json!(REDIRECT))
    );
    assert_eq!((query["code_challenge_method"].as_str(), query["code_challenge"].len()), ("S256", 43));
    let verifier = request.pending["verifier"].as_str().unwrap();
    assert!(verifier.len() >= 43 && !request.shown.to_string().contains(verifier));
    assert_eq!(request.message, "Sign in at 127.0.0.1 to go on.");
    let credential = signed_in(&server, &method).await.unwrap();
    assert!(token(&method, &credential).starts_with("access-CANARY"));
    assert_eq!(method.standing(Some(&credential), now()), Standing::Ready);
    let other = asked(&method).await.0;
    assert_ne!(
        (&other.shown, &other.pending),
        (&request.shown, &request.pending),
        "no two sign-ins are alike"
    );
}

#[tokio::test]
async fn the_scheme_is_in_the_form_of_openapi_and_holds_no_secret() {
    let server = OAuthServer::start().await;
    let (authorize, at) = (server.url("/authorize"), server.url("/token"));
    let method = code(&server, client()).build().unwrap();
    let flow = json!({"authorizationUrl": authorize, "tokenUrl": at, "scopes": {"read": "", "write": ""}});
    assert_eq!(method.scheme(), json!({"type": "oauth2", "flows": {"authorizationCode": flow}}));
    let machine = OAuth::client_credentials(client(), &at).allow_private(server.host()).build().unwrap();
    let flow = json!({"tokenUrl": at, "scopes": {}});
    assert_eq!(machine.scheme(), json!({"type": "oauth2", "flows": {"clientCredentials": flow}}));
    let url = server.url("/.well-known/openid-configuration");
    assert_eq!(
        open_id(&server).scheme(),
        json!({"type": "openIdConnect", "openIdConnectUrl": url, "scopes": ["openid"]})
    );
    assert!(!format!("{method:?} {machine:?} {:?}", client()).contains("CANARY"));
}

#[tokio::test]
async fn clients_say_who_they_are_in_each_of_three_ways() {
    let server = OAuthServer::start().await;
    let ways = [client(), client().secret_in_body(), OAuthClient::new(PUBLIC_CLIENT)];
    for way in ways {
        let method = code(&server, way).build().unwrap();
        signed_in(&server, &method).await.unwrap();
    }
    let sent = server.grants("authorization_code");
    let fields = |at: usize, name: &str| sent[at].get(name).map(String::as_str);
    assert_eq!([fields(0, "client_id"), fields(0, "client_secret")], [None, None], "in a header");
    assert_eq!([fields(1, "client_id"), fields(1, "client_secret")], [Some(CLIENT), Some(CLIENT_SECRET)]);
    assert_eq!([fields(2, "client_id"), fields(2, "client_secret")], [Some(PUBLIC_CLIENT), None]);
    let wrong = OAuthClient::new(CLIENT).secret(Secret::new("wrong-CANARY"));
    let method = code(&server, wrong).build().unwrap();
    assert!(words(signed_in(&server, &method).await).contains("`invalid_client`"));
}

/// A client that signs who it is.
fn key_client(pem: &str) -> OAuthClient {
    OAuthClient::new(KEY_CLIENT).private_key(pem, Some("c1")).unwrap()
}

/// What a token says, whoever signed it.
fn claims(token: &str) -> Value {
    let claims = token.split('.').nth(1).unwrap();
    let claims = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, claims).unwrap();
    serde_json::from_slice(&claims).unwrap()
}

#[tokio::test]
async fn a_client_with_a_key_signs_who_it_is_for_the_server_that_it_asks() {
    let server = OAuthServer::start().await;
    // By its token URL, by the issuer that it is asked by, and by what the program says.
    let by_code = code(&server, key_client(CLIENT_KEY)).build().unwrap();
    let issuer = OAuth::open_id(key_client(CLIENT_KEY), server.url(""), REDIRECT);
    let by_issuer = issuer.allow_private(server.host()).build().unwrap();
    let named = code(&server, key_client(CLIENT_KEY)).issuer(server.url("")).build().unwrap();
    for method in [&by_code, &by_issuer, &named] {
        let credential = signed_in(&server, method).await.unwrap();
        let renewed = method.renew(Some(&credential), now()).await.unwrap().unwrap();
        method.revoke(&renewed, now()).await.unwrap();
        assert_eq!(server.good_tokens().1, 0, "it is given up");
    }
    let program = OAuth::client_credentials(key_client(CLIENT_KEY), server.url("/token"));
    let program = program.allow_private(server.host()).build().unwrap();
    program.renew(None, now()).await.unwrap().unwrap();
    let sent = server.asked("/token").into_iter().chain(server.asked("/revoke"));
    for sent in sent {
        assert!(!sent.contains_key("client_secret"));
        assert_eq!(sent["client_id"], KEY_CLIENT);
    }
    let names: Vec<Value> =
        server.asked("/token").iter().map(|sent| claims(&sent["client_assertion"])["aud"].clone()).collect();
    let (token, issuer) = (json!(server.url("/token")), json!(server.url("")));
    assert_eq!(names, [&token, &token, &issuer, &issuer, &issuer, &issuer, &token].map(Value::clone));
}

#[tokio::test]
async fn a_client_with_another_key_or_for_another_server_is_refused() {
    let server = OAuthServer::start().await;
    let elsewhere = code(&server, key_client(CLIENT_KEY)).issuer("https://other.example");
    for method in [code(&server, key_client(PRIVATE_KEY)), elsewhere] {
        let method = method.build().unwrap();
        assert!(words(signed_in(&server, &method).await).contains("`invalid_client`"));
    }
    let none = OAuthClient::new(KEY_CLIENT).private_key("key-CANARY", None);
    assert!(words(none).contains("private key cannot be used"));
    assert_eq!(format!("{:?}", key_client(CLIENT_KEY)).matches("SigningKey(…)").count(), 1);
}

#[tokio::test]
async fn an_answer_of_another_server_than_the_one_that_was_asked_is_refused() {
    let server = OAuthServer::start().await;
    let method = code(&server, client()).issuer("https://login.example").build().unwrap();
    let (request, link) = asked(&method).await;
    assert_eq!(request.shown["authType"], "oauth2");
    let back = server.sign_in(&link).await;
    let refused = request.expects.check(&json!(format!("{back}&iss=https://evil.example"))).unwrap_err();
    assert!(refused.contains("`iss`"), "{refused}");
    request.expects.check(&json!(format!("{back}&iss=https://login.example"))).unwrap();
    request.expects.check(&json!(back)).unwrap();
}

#[tokio::test]
async fn parameters_go_into_the_link_and_the_resource_to_the_token_endpoint_too() {
    let server = OAuthServer::start().await;
    let method = code(&server, client())
        .prompt("consent")
        .audience("https://api.example")
        .resource("https://mcp.example/")
        .parameter("access_type", "offline")
        .question("Let me see your calendar.")
        .build()
        .unwrap();
    assert_eq!(asked(&method).await.0.message, "Let me see your calendar.");
    let credential = signed_in(&server, &method).await.unwrap();
    method.renew(Some(&credential), now()).await.unwrap().unwrap();
    let link = &server.asked("/authorize")[0];
    let expected = [
        ("prompt", "consent"),
        ("audience", "https://api.example"),
        ("resource", "https://mcp.example/"),
        ("access_type", "offline"),
    ];
    for (name, value) in expected {
        assert_eq!(link[name], value);
    }
    for sent in server.asked("/token") {
        assert_eq!(sent["resource"], "https://mcp.example/");
        assert!(!sent.contains_key("prompt"));
    }
}

#[tokio::test]
async fn a_token_is_renewed_before_it_expires_and_refresh_tokens_rotate() {
    let server = OAuthServer::start().await;
    let method = code(&server, client()).build().unwrap();
    let first = signed_in(&server, &method).await.unwrap();
    assert_eq!(method.standing(Some(&first), now() + 3500.0), Standing::Ready);
    assert_eq!(method.standing(Some(&first), now() + 3545.0), Standing::Renew, "a minute before its end");
    let second = method.renew(Some(&first), now()).await.unwrap().unwrap();
    assert_ne!(token(&method, &first), token(&method, &second));
    let third = method.renew(Some(&second), now()).await.unwrap().unwrap();
    let sent = server.grants("refresh_token");
    assert_ne!(sent[0]["refresh_token"], sent[1]["refresh_token"]);
    assert!(method.renew(Some(&first), now()).await.unwrap().is_none(), "it was used: a person is asked");
    server.keeps_refresh_tokens();
    let fourth = method.renew(Some(&third), now()).await.unwrap().unwrap();
    assert!(method.renew(Some(&fourth), now()).await.unwrap().is_some(), "the old one still counts");
}

#[tokio::test]
async fn without_a_refresh_token_a_person_is_asked_again_once_the_token_has_expired() {
    let server = OAuthServer::start().await;
    server.gives_no_refresh_tokens();
    let method = code(&server, client()).build().unwrap();
    let credential = signed_in(&server, &method).await.unwrap();
    assert_eq!(method.standing(Some(&credential), now() + 4000.0), Standing::Ask);
    assert!(method.renew(Some(&credential), now()).await.unwrap().is_none());
    server.lifetime(None);
    let credential = signed_in(&server, &method).await.unwrap();
    assert_eq!(method.standing(Some(&credential), now() + 1e9), Standing::Ready, "until it is refused");
}

#[tokio::test]
async fn a_program_gets_a_token_for_itself() {
    let server = OAuthServer::start().await;
    let method = OAuth::client_credentials(client(), server.url("/token"))
        .scope("jobs")
        .parameter("audience", "api")
        .allow_private(server.host())
        .build()
        .unwrap();
    assert_eq!(method.standing(None, now()), Standing::Renew);
    let credential = method.renew(None, now()).await.unwrap().unwrap();
    assert!(token(&method, &credential).starts_with("access-CANARY"));
    let sent = &server.grants("client_credentials")[0];
    assert_eq!((sent["scope"].as_str(), sent["audience"].as_str()), ("jobs", "api"));
    assert_eq!(method.standing(Some(&credential), now() + 4000.0), Standing::Renew);
    assert!(words(method.ask(now()).await).contains("needs no person"));
}

#[tokio::test]
async fn a_service_account_signs_for_its_token() {
    let server = OAuthServer::start().await;
    let file = json!({"type": "service_account", "client_email": ACCOUNT, "private_key": PRIVATE_KEY,
        "private_key_id": "k1", "token_uri": server.url("/token")});
    let account = |file: &Value| OAuth::service_account(file.to_string()).allow_private(server.host());
    let method = account(&file).scope("drive").act_for("ann@project.example").build().unwrap();
    assert_eq!(method.standing(None, now()), Standing::Renew);
    let credential = method.renew(None, now()).await.unwrap().unwrap();
    assert!(token(&method, &credential).starts_with("access-CANARY"));
    let sent = &server.grants("jwt-bearer")[0];
    let claims = claims(&sent["assertion"]);
    assert_eq!((&claims["scope"], &claims["sub"]), (&json!("drive"), &json!("ann@project.example")));
    assert_eq!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(), 3600);
    for broken in [json!({"client_email": "a"}), json!({"client_email": "a", "private_key": "x-CANARY"})] {
        words(account(&broken).build());
    }
}

#[tokio::test]
async fn a_token_is_exchanged_for_another() {
    let server = OAuthServer::start().await;
    let exchange = |subject| {
        OAuth::token_exchange(client(), server.url("/token"), subject)
            .scope("mail")
            .resource("https://mail.example/")
            .allow_private(server.host())
    };
    let method = exchange(PlainAuth::bearer().fixed(SUBJECT_TOKEN)).build().unwrap();
    assert_eq!(method.standing(None, now()), Standing::Renew);
    let credential = method.renew(None, now()).await.unwrap().unwrap();
    assert!(!credential.expose().to_string().contains(SUBJECT_TOKEN), "the program has it");
    let sent = &server.grants("token-exchange")[0];
    assert_eq!(sent["subject_token"], SUBJECT_TOKEN);
    assert_eq!(sent["subject_token_type"], "urn:ietf:params:oauth:token-type:access_token");
    assert_eq!((sent["scope"].as_str(), sent["resource"].as_str()), ("mail", "https://mail.example/"));
    let bad = exchange(PlainAuth::bearer().fixed("other-CANARY")).build().unwrap();
    assert!(words(bad.renew(None, now()).await).contains("`invalid_request`"));
}

#[tokio::test]
async fn a_token_of_a_person_is_exchanged_and_renewed_with_theirs() {
    let server = OAuthServer::start().await;
    let person = code(&server, client()).build().unwrap();
    let method = OAuth::token_exchange(client(), server.url("/token"), person)
        .revocation_url(server.url("/revoke"))
        .allow_private(server.host())
        .build()
        .unwrap();
    assert_eq!(method.standing(None, now()), Standing::Ask);
    assert_eq!(method.scheme()["flows"]["authorizationCode"]["tokenUrl"], server.url("/token"));
    let credential = signed_in(&server, &method).await.unwrap();
    assert_eq!(method.standing(Some(&credential), now()), Standing::Ready);
    assert_eq!(server.grants("token-exchange").len(), 1);
    let late = now() + 4000.0;
    assert_eq!(method.standing(Some(&credential), late), Standing::Renew);
    let renewed = method.renew(Some(&credential), late).await.unwrap().unwrap();
    assert_ne!(token(&method, &credential), token(&method, &renewed));
    assert_eq!((server.grants("refresh_token").len(), server.grants("token-exchange").len()), (1, 2));
    server.fault(Fault::Refuses("invalid_grant"));
    assert!(method.renew(Some(&renewed), now()).await.unwrap().is_none(), "a person is asked");
    server.fault(Fault::None);
    method.revoke(&renewed, now()).await.unwrap();
    assert_eq!(server.good_tokens(), (0, 0));
}

#[tokio::test]
async fn the_id_token_of_a_sign_in_is_exchanged_if_that_is_wanted() {
    let server = OAuthServer::start().await;
    let kind = "urn:ietf:params:oauth:token-type:id_token";
    let method = OAuth::token_exchange(client(), server.url("/token"), open_id(&server))
        .subject_token_type(kind)
        .allow_private(server.host())
        .build()
        .unwrap();
    words(signed_in(&server, &method).await);
    let sent = &server.grants("token-exchange")[0];
    assert_eq!((sent["subject_token_type"].as_str(), sent["subject_token"].split('.').count()), (kind, 3));
}

#[tokio::test]
async fn what_is_given_up_is_revoked_with_all_that_came_of_it() {
    let server = OAuthServer::start().await;
    let method = code(&server, client()).build().unwrap();
    let credential = signed_in(&server, &method).await.unwrap();
    assert_eq!(server.good_tokens(), (1, 1));
    method.revoke(&credential, now()).await.unwrap();
    assert_eq!(server.good_tokens(), (0, 0));
    assert_eq!(server.asked("/revoke")[0]["token_type_hint"], "refresh_token");
    server.gives_no_refresh_tokens();
    let credential = signed_in(&server, &method).await.unwrap();
    server.fault(Fault::Broken);
    assert!(words(method.revoke(&credential, now()).await).contains("status 503"));
    server.fault(Fault::None);
    method.revoke(&credential, now()).await.unwrap();
    assert_eq!(server.asked("/revoke")[2]["token_type_hint"], "access_token");
    assert_eq!(server.good_tokens(), (0, 0));
}

#[tokio::test]
async fn an_issuer_says_where_it_is_asked_and_who_signed_in() {
    let server = OAuthServer::start().await;
    let method = open_id(&server);
    let (request, link) = asked(&method).await;
    let query = form(link.split_once('?').unwrap().1);
    assert_eq!((query["scope"].as_str(), query["nonce"].len()), ("openid", 43));
    assert_eq!(request.shown["authType"], "openIdConnect");
    let credential = signed_in(&server, &method).await.unwrap();
    assert!(token(&method, &credential).starts_with("access-CANARY"));
    assert_eq!(credential.expose()["person"], "ann-CANARY");
    let renewed = method.renew(Some(&credential), now()).await.unwrap().unwrap();
    assert_eq!(renewed.expose()["person"], "ann-CANARY", "it is still that person's");
    method.revoke(&renewed, now()).await.unwrap();
    assert_eq!(server.good_tokens(), (0, 0), "where is published");
    assert_eq!(server.asked("/.well-known/openid-configuration").len(), 1, "it was asked once");
    method.ask(now() + 4000.0).await.unwrap();
    assert_eq!(server.asked("/.well-known/openid-configuration").len(), 2, "an hour later again");
}

#[tokio::test]
async fn an_id_token_that_is_not_good_is_refused() {
    let server = OAuthServer::start().await;
    let second = |seconds: f64| json!(now() + seconds);
    for (fault, said) in [
        (Fault::Claims(json!({"nonce": "another"})), "`nonce`"),
        (Fault::Claims(json!({"nonce": null})), "`nonce`"),
        (Fault::Claims(json!({"iss": "https://evil.example"})), "`iss`"),
        (Fault::Claims(json!({"aud": "somebody"})), "`aud`"),
        (Fault::Claims(json!({"aud": null})), "`aud`"),
        (Fault::Claims(json!({"azp": "somebody"})), "`azp`"),
        (Fault::Claims(json!({"exp": second(-120.0)})), "expired"),
        (Fault::Claims(json!({"exp": null})), "`exp`"),
        (Fault::Claims(json!({"nbf": second(600.0)})), "`nbf`"),
        (Fault::Claims(json!({"sub": null})), "`sub`"),
        (Fault::Forges, "not signed by one of the keys"),
        (Fault::NoKey, "not signed by one of the keys"),
        (Fault::Says(json!({"id_token": null})), "no id token"),
        (Fault::Says(json!({"id_token": "no.token"})), "no signed token"),
    ] {
        server.fault(fault.clone());
        let said_really = words(signed_in(&server, &open_id(&server)).await);
        assert!(said_really.contains(said), "{fault:?}: {said_really}");
    }
}

#[tokio::test]
async fn a_new_id_token_must_be_about_the_same_person() {
    let server = OAuthServer::start().await;
    let method = open_id(&server);
    let credential = signed_in(&server, &method).await.unwrap();
    let own = credential.expose()["idToken"].clone();
    server.fault(Fault::Says(json!({"id_token": own})));
    let renewed = method.renew(Some(&credential), now()).await.unwrap().unwrap();
    let mut other = renewed.expose().clone();
    other["person"] = json!("bob");
    let another = method.renew(Some(&Credential::new(other)), now()).await.unwrap();
    assert!(another.is_none(), "it is about somebody else: a person is asked");
}

#[tokio::test]
async fn a_rotated_refresh_token_is_kept_even_if_the_new_id_token_cannot_be_checked() {
    let server = OAuthServer::start().await;
    let method = open_id(&server);
    let credential = signed_in(&server, &method).await.unwrap();
    let own = credential.expose()["idToken"].clone();
    // Its key is gone, or it is no token at all.
    for id_token in [json!("no.token"), json!(format!("{}x", own.as_str().unwrap()))] {
        let credential = signed_in(&server, &method).await.unwrap();
        server.fault(Fault::Says(json!({"id_token": id_token})));
        let renewed = method.renew(Some(&credential), now()).await.unwrap().unwrap();
        server.fault(Fault::None);
        assert_ne!(renewed.expose()["refreshToken"], credential.expose()["refreshToken"]);
        assert_eq!(renewed.expose()["person"], "ann-CANARY");
        assert_eq!(renewed.expose()["idToken"], credential.expose()["idToken"], "the one before stays");
        assert!(method.renew(Some(&renewed), now()).await.unwrap().is_some(), "the new one counts");
    }
}

#[tokio::test]
async fn a_rotated_refresh_token_is_kept_even_if_the_token_is_not_exchanged() {
    let server = OAuthServer::start().await;
    let person = code(&server, client()).build().unwrap();
    // It is exchanged elsewhere.
    let exchange = OAuthServer::start().await;
    let method = OAuth::token_exchange(client(), exchange.url("/token"), person)
        .allow_private(server.host())
        .allow_private(exchange.host())
        .build()
        .unwrap();
    exchange.fault(Fault::Accepts);
    let credential = signed_in(&server, &method).await.unwrap();
    let late = now() + 4000.0;
    exchange.fault(Fault::Broken);
    let kept = method.renew(Some(&credential), late).await.unwrap().unwrap();
    assert_eq!(server.grants("refresh_token").len(), 1);
    assert_ne!(kept.expose()["subject"]["refreshToken"], credential.expose()["subject"]["refreshToken"]);
    assert_eq!(method.standing(Some(&kept), late), Standing::Renew, "it is still to be exchanged");
    assert!(words(method.renew(Some(&kept), late).await).contains("gives no token"), "nothing new to keep");
    exchange.fault(Fault::Accepts);
    let renewed = method.renew(Some(&kept), late).await.unwrap().unwrap();
    assert_eq!(method.standing(Some(&renewed), late), Standing::Ready);
    assert_eq!(server.grants("refresh_token").len(), 1, "that one still counts");
}

#[tokio::test]
async fn tokens_are_used_with_the_server_client_scopes_and_service_they_were_given_for_only() {
    let (server, other) = (OAuthServer::start().await, OAuthServer::start().await);
    let credential = signed_in(&server, &code(&server, client()).build().unwrap()).await.unwrap();
    let other_client = OAuthClient::new(PUBLIC_CLIENT);
    for method in [
        code(&other, client()),
        code(&server, other_client),
        code(&server, client()).scope("admin"),
        code(&server, client()).resource("https://other.example/"),
        OAuth::open_id(client(), server.url(""), REDIRECT).allow_private(server.host()),
    ] {
        let method = method.build().unwrap();
        assert_eq!(method.standing(Some(&credential), now()), Standing::Ask, "{method:?}");
        assert!(method.http(&credential).is_none());
        assert!(method.renew(Some(&credential), now()).await.unwrap().is_none());
        assert!(words(method.revoke(&credential, now()).await).contains("another server's"));
    }
    assert!(other.asked("/token").is_empty() && other.asked("/revoke").is_empty());
    assert_eq!((server.grants("refresh_token").len(), server.asked("/revoke").len()), (0, 0));
    let again = code(&server, client()).build().unwrap();
    assert_eq!(again.standing(Some(&credential), now()), Standing::Ready, "the same, built anew");
    let machine = |server: &OAuthServer| {
        OAuth::client_credentials(client(), server.url("/token"))
            .allow_private(server.host())
            .build()
            .unwrap()
    };
    let kept = machine(&server).renew(None, now()).await.unwrap().unwrap();
    assert_eq!(machine(&other).standing(Some(&kept), now()), Standing::Renew, "a program needs nobody");
}

#[tokio::test]
async fn short_lived_tokens_are_used_and_one_that_still_counts_if_it_cannot_be_renewed() {
    let server = OAuthServer::start().await;
    server.lifetime(Some(30));
    let method = code(&server, client()).build().unwrap();
    let credential = signed_in(&server, &method).await.unwrap();
    let begun = credential.expose()["expiresAt"].as_f64().unwrap() - 30.0;
    assert_eq!(method.standing(Some(&credential), begun + 20.0), Standing::Ready);
    assert_eq!(
        method.standing(Some(&credential), begun + 28.0),
        Standing::Renew,
        "a tenth of its time is left"
    );
    server.fault(Fault::Broken);
    let ending = method.renew(Some(&credential), begun + 28.0).await.unwrap().unwrap();
    assert_eq!(ending, credential, "it counts for another moment");
    words(method.renew(Some(&credential), begun + 40.0).await);
    server.fault(Fault::None);
    server.lifetime(Some(0));
    let credential = signed_in(&server, &method).await.unwrap();
    assert_eq!(method.standing(Some(&credential), now() + 1e6), Standing::Ready, "until it is refused");
}

#[tokio::test]
async fn the_revocation_url_of_the_program_comes_before_that_of_the_issuer() {
    let server = OAuthServer::start().await;
    let method = OAuth::open_id(client(), server.url(""), REDIRECT)
        .revocation_url(server.url("/give-up"))
        .allow_private(server.host())
        .build()
        .unwrap();
    let credential = signed_in(&server, &method).await.unwrap();
    words(method.revoke(&credential, now()).await);
    assert_eq!((server.asked("/give-up").len(), server.asked("/revoke").len()), (1, 0));
}

#[tokio::test]
async fn a_token_is_revoked_even_if_the_one_it_was_exchanged_for_is_not() {
    let server = OAuthServer::start().await;
    let person = code(&server, client()).revocation_url(server.url("/nowhere")).build().unwrap();
    let method = OAuth::token_exchange(client(), server.url("/token"), person)
        .revocation_url(server.url("/revoke"))
        .allow_private(server.host())
        .build()
        .unwrap();
    let credential = signed_in(&server, &method).await.unwrap();
    assert!(words(method.revoke(&credential, now()).await).contains("status 404"));
    assert_eq!((server.asked("/nowhere").len(), server.asked("/revoke").len()), (1, 1));
}

#[tokio::test]
async fn a_discovery_document_must_be_whole_and_of_that_issuer() {
    let server = OAuthServer::start().await;
    for (fields, said) in [
        (json!({"issuer": "https://evil.example"}), "another issuer"),
        (json!({"issuer": server.url("/realm")}), "another issuer"),
        (json!({"issuer": null}), "no discovery document with all"),
        (json!({"jwks_uri": null}), "no discovery document with all"),
        (json!({"token_endpoint": "http://169.254.169.254/"}), "not public"),
        (json!({"token_endpoint": "http://login.example/"}), "begins with https"),
        (json!({"authorization_endpoint": "javascript:alert(1)"}), "not allowed"),
    ] {
        server.fault(Fault::Discovery(fields.clone()));
        let said_really = words(open_id(&server).ask(now()).await);
        assert!(said_really.contains(said), "{fields}: {said_really}");
    }
    server.fault(Fault::None);
    let elsewhere = OAuth::open_id(client(), server.url("/nowhere"), REDIRECT).allow_private(server.host());
    assert!(words(elsewhere.build().unwrap().ask(now()).await).contains("status 404"));
}

#[tokio::test]
async fn an_issuer_may_be_named_with_or_without_the_slash_at_its_end() {
    let server = OAuthServer::start().await;
    let slash =
        OAuth::open_id(key_client(CLIENT_KEY), server.url("/"), REDIRECT).allow_private(server.host());
    signed_in(&server, &slash.build().unwrap()).await.unwrap();
    server.fault(Fault::Slash);
    let method = open_id(&server);
    signed_in(&server, &method).await.unwrap();
    // What counts is how the issuer writes it.
    let (request, link) = asked(&method).await;
    let back = server.sign_in(&link).await;
    request.expects.check(&json!(format!("{back}&iss={}", server.url("/")))).unwrap();
    request.expects.check(&json!(format!("{back}&iss={}", server.url("")))).unwrap_err();
}

#[tokio::test]
async fn a_token_endpoint_that_misbehaves_is_an_error_that_says_how() {
    let server = OAuthServer::start().await;
    for (fault, said) in [
        (Fault::Html, "not in the form of OAuth (status 200)"),
        (Fault::Broken, "not in the form of OAuth (status 500)"),
        (Fault::HalfJson, "not in the form of OAuth"),
        (Fault::Huge, "too long"),
        (Fault::Redirect, "redirects are not followed"),
        (Fault::Says(json!({"access_token": null})), "none in its answer"),
        (Fault::Says(json!({"access_token": ""})), "none in its answer"),
        (Fault::Says(json!({"access_token": "a\r\nX-Evil: 1"})), "none in its answer"),
        (Fault::Says(json!({"access_token": 5})), "not in the form of OAuth"),
        (Fault::Says(json!({"token_type": "mac"})), "type `Bearer`"),
        (Fault::Says(json!({"expires_in": -1})), "`expires_in`"),
        (Fault::Says(json!({"expires_in": "soon"})), "`expires_in`"),
        (Fault::Says(json!({"expires_in": {"in": 1}})), "`expires_in`"),
        (Fault::Refuses("invalid_grant"), "it says `invalid_grant`"),
        (Fault::Refuses("temporarily unavailable: code-CANARY"), "it says `error`"),
        (Fault::Refuses("code-CANARY"), "it says `error`"),
        (Fault::ExpiresCodes, "`invalid_grant`"),
    ] {
        server.fault(fault.clone());
        let method = code(&server, client()).build().unwrap();
        let said_really = words(signed_in(&server, &method).await);
        assert!(said_really.contains(said), "{fault:?}: {said_really}");
        assert!(said_really.starts_with("`127.0.0.1` gives no token: "), "{said_really}");
    }
    server.fault(Fault::Hang);
    let limits = HttpLimits { time: Duration::from_millis(500), ..HttpLimits::default() };
    let method = code(&server, client()).limits(limits).build().unwrap();
    let said = words(signed_in(&server, &method).await);
    assert!(said.contains("no answer within 0.5 s"), "{said}");
    assert!(server.asked("/stolen").is_empty());
}

#[tokio::test]
async fn odd_answers_that_mean_well_are_understood() {
    let server = OAuthServer::start().await;
    let method = code(&server, client()).build().unwrap();
    for (fields, ready_after) in [
        (json!({"token_type": "bEARER"}), 3000.0),
        (json!({"token_type": null}), 3000.0),
        (json!({"expires_in": "3600"}), 3000.0),
        (json!({"expires_in": 1e300}), 1e12),
        (json!({"expires_in": null}), 1e12),
        (json!({"expires_in": 0}), 1e12),
        (json!({"more": {"than": "needed"}}), 3000.0),
    ] {
        server.fault(Fault::Says(fields.clone()));
        let credential = signed_in(&server, &method).await.unwrap();
        assert_eq!(method.standing(Some(&credential), now() + ready_after), Standing::Ready, "{fields}");
    }
    let given = Credential::new("put-there");
    assert_eq!(method.standing(Some(&given), now()), Standing::Ready);
    assert_eq!(token(&method, &given), "put-there");
}

#[tokio::test]
async fn a_refusal_while_renewing_asks_a_person_and_a_failure_does_not() {
    let server = OAuthServer::start().await;
    let method = code(&server, client()).build().unwrap();
    let credential = signed_in(&server, &method).await.unwrap();
    for fault in [Fault::Broken, Fault::Html, Fault::Refuses("invalid_client")] {
        server.fault(fault);
        words(method.renew(Some(&credential), now()).await);
    }
    server.fault(Fault::Refuses("invalid_grant"));
    assert!(method.renew(Some(&credential), now()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_code_counts_once_and_with_its_verifier_only() {
    let server = OAuthServer::start().await;
    let method = code(&server, client()).build().unwrap();
    let (request, link) = asked(&method).await;
    let given = request.expects.check(&json!(server.sign_in(&link).await)).unwrap();
    let mut stolen = request.pending.clone();
    stolen["verifier"] = json!("a".repeat(43));
    let redeem = async |pending: &Value| {
        method.exchange(AuthAnswer { given: given.clone(), pending: pending.clone() }, now()).await
    };
    assert!(words(redeem(&stolen).await).contains("`invalid_grant`"));
    assert!(words(redeem(&Value::Null).await).contains("sign in again"));
    let (request, link) = asked(&method).await;
    let given = request.expects.check(&json!(server.sign_in(&link).await)).unwrap();
    let redeem = async || {
        method.exchange(AuthAnswer { given: given.clone(), pending: request.pending.clone() }, now()).await
    };
    redeem().await.unwrap();
    assert!(words(redeem().await).contains("`invalid_grant`"));
}

#[tokio::test]
async fn a_person_who_says_no_or_comes_back_with_another_state_gives_nothing() {
    let server = OAuthServer::start().await;
    let method = code(&server, client()).build().unwrap();
    let (request, link) = asked(&method).await;
    let denied = request.expects.check(&json!(server.deny(&link).await)).unwrap_err();
    assert!(denied.contains("`access_denied`"), "{denied}");
    server.fault(Fault::LiesAboutState);
    let lied = request.expects.check(&json!(server.sign_in(&link).await)).unwrap_err();
    assert!(lied.contains("`state`"), "{lied}");
}

#[test]
fn what_cannot_work_is_refused_when_it_is_built() {
    let at = |authorize: &str, token: &str, redirect: &str| {
        words(OAuth::code(OAuthClient::new("c"), authorize, token, redirect).build())
    };
    let (ok, redirect) = ("https://login.example/", "https://app.example/");
    assert!(at("no address", ok, redirect).contains("the authorization URL is no web address"));
    assert!(at("javascript:alert(1)", ok, redirect).contains("not allowed"));
    assert!(at(ok, "http://login.example/", redirect).contains("begins with https"));
    assert!(at(ok, "https://127.0.0.1/", redirect).contains("not public"));
    assert!(at(ok, "https://ann:pass@login.example/", redirect).contains("password"));
    assert!(at(ok, "https://login.example/#x", redirect).contains("`#`"));
    assert!(at(ok, ok, "/callback").contains("redirect URI"));
    assert!(at(ok, ok, "https://app.example/#x").contains("`#`"));
    assert!(OAuth::code(OAuthClient::new("c"), ok, ok, "com.example.app:/back").build().is_ok());
    let own = OAuth::client_credentials(OAuthClient::new("c"), ok).parameter("client_secret", "x-CANARY");
    assert!(words(own.build()).contains("`client_secret`"));
    assert!(words(OAuth::client_credentials(OAuthClient::new(""), ok).build()).contains("no id"));
    let private = OAuth::client_credentials(OAuthClient::new("c"), "http://localhost:8080/token");
    assert!(private.allow_private("localhost:8080").build().is_ok());
}

/// Leads every name to this machine.
struct Here;

impl umbel_tools::Lookup for Here {
    fn lookup(&self, _: String) -> umbel_core::BoxFuture<'static, std::io::Result<Vec<std::net::IpAddr>>> {
        Box::pin(async { Ok(vec![std::net::Ipv4Addr::LOCALHOST.into()]) })
    }
}

#[tokio::test]
async fn names_that_lead_inside_are_not_asked_unless_they_may_be() {
    let server = OAuthServer::start().await;
    let url = format!("http://login.example:{}/token", server.port);
    let machine = |url: &str| OAuth::client_credentials(client(), url).lookup(Here);
    let method = machine("https://login.example/token").build().unwrap();
    assert!(words(method.renew(None, now()).await).contains("not public"));
    let method = machine(&url).allow_private(format!("login.example:{}", server.port)).build().unwrap();
    assert!(method.renew(None, now()).await.unwrap().is_some());
}
