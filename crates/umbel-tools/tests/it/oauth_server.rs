//! An authorization server that plays the other side: OAuth 2, OpenID Connect, and a service that wants its tokens.
//!
//! Every secret that it gives out or expects has `CANARY` in it, so that a test can look for them where none must be.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use umbel_jwt::{KeySet, SigningKey, Token};

/// The key that signs id tokens, and that of the service account.
pub(crate) const PRIVATE_KEY: &str = include_str!("../../../umbel-jwt/tests/rsa_key.pem");
/// Its public half.
const MODULUS: &str = "sYz55AfquXeImEFtB74LYAaYWsFVdwEtnrE4kNWHDL6-tACgH3_Eg66i1nusQV7MZwiUfeQjo1kNPSzxlSU91m92\
                       MCwnZxtOidZafzWpz1VKGvTFI_2Bum1XEW_qA7qNt5ImHefaf48IK_7bJmXypewWnE_PAH0bd4Md07BRp4f3aro\
                       QaTvVaEQQYsYrpcbYUZQ04qI7CqHkujfxW1K7ihWDnf0Zb0MC_ydZSeEKX1kZc5-3C4HTzzRf1PLMg38aXW2HWt\
                       jUCgTmIlbCvDWttgYg1DV1qaAieqqqZEc61emhaQmqcBNfP1cHUr5VO_YvvIODv7CZy-mQnQ_GtvWBYQ";
/// A client that has a secret, and one that has none.
pub(crate) const CLIENT: &str = "umbel-client";
pub(crate) const PUBLIC_CLIENT: &str = "umbel-public";
/// A client that signs who it is, with this key.
pub(crate) const KEY_CLIENT: &str = "umbel-signs";
pub(crate) const CLIENT_KEY: &str = include_str!("../../../umbel-jwt/tests/p256_key.pem");
const CLIENT_X: &str = "yW4cRJLid8dstMUlMB9DPueJh8hykotV0eu5IDwssHI";
const CLIENT_Y: &str = "vKKL6i39T5t8SRb9Ms7HQC8lGDO7USZPnHQFRHRvDv4";
/// With signs that forms and headers write in ways of their own.
pub(crate) const CLIENT_SECRET: &str = "client CANARY:/+ä";
pub(crate) const REDIRECT: &str = "https://app.example/callback";
/// A token of someone else, which may be exchanged here.
pub(crate) const SUBJECT_TOKEN: &str = "subject-CANARY";
pub(crate) const ACCOUNT: &str = "robot@project.example";

/// The key of the shop.
const SHOP_KEY: &str = "key-CANARY";
/// What people see where they are asked first. It is sent by `POST`, as services do it.
const CONSENT: &str = "<!doctype html><html lang=en><title>Sign in</title><h1>May Umbel see the weather?</h1>\
    <form method=post><button name=person value=agrees>Agree</button> \
    <button name=person value=denies>Say no</button> \
    <button name=person value=lies>Come back with another state</button></form>";

/// What the server does wrong.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    None,
    /// The token endpoint never answers.
    Hang,
    /// It answers with a page.
    Html,
    /// It fails.
    Broken,
    /// Its answer is cut short.
    HalfJson,
    /// Its answer is endless.
    Huge,
    /// It sends the client elsewhere.
    Redirect,
    /// These fields of its answer are others; `null` takes one away.
    Says(Value),
    /// It refuses with this error, and repeats what it was sent.
    Refuses(&'static str),
    /// These claims of id tokens are others; `null` takes one away.
    Claims(Value),
    /// These fields of the discovery document are others; `null` takes one away.
    Discovery(Value),
    /// The signature of id tokens is not right.
    Forges,
    /// The key that signs id tokens is not among those that are published.
    NoKey,
    /// The person comes back with another state.
    LiesAboutState,
    /// Codes have expired by the time they are used.
    ExpiresCodes,
    /// Whatever token is brought is exchanged.
    Accepts,
    /// Its name as an issuer ends with a slash.
    Slash,
}

/// What is kept between requests.
struct State {
    fault: Fault,
    /// For how long tokens are said to be good.
    lifetime: Option<u64>,
    gives_refresh: bool,
    rotates: bool,
    /// Whether a refresh token that is used a second time ends all of them.
    detects_reuse: bool,
    /// How long the token endpoint takes to answer.
    takes: Duration,
    count: usize,
    codes: HashMap<String, Code>,
    /// Refresh tokens that are good, with the scope they were given for.
    refresh: HashMap<String, String>,
    /// Access tokens that are good, with what they were given for.
    access: HashMap<String, String>,
    /// Each request to an endpoint: its path, and its fields with the client's.
    asked: Vec<(String, HashMap<String, String>)>,
    /// Refresh tokens that were used, and the ids of what clients have signed: each counts once.
    used: HashSet<String>,
}

struct Code {
    client: String,
    redirect: String,
    challenge: String,
    nonce: Option<String>,
    scope: String,
}

/// The server. It ends with its runtime.
#[derive(Clone)]
pub(crate) struct OAuthServer {
    pub(crate) port: u16,
    state: Arc<Mutex<State>>,
}

/// A request, taken apart.
struct Request {
    path: String,
    fields: HashMap<String, String>,
    authorization: Option<String>,
}

impl OAuthServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state = State {
            fault: Fault::None,
            lifetime: Some(3600),
            gives_refresh: true,
            rotates: true,
            detects_reuse: false,
            takes: Duration::ZERO,
            count: 0,
            codes: HashMap::new(),
            refresh: HashMap::new(),
            access: HashMap::new(),
            asked: Vec::new(),
            used: HashSet::new(),
        };
        let server = Self { port: listener.local_addr().unwrap().port(), state: Arc::new(Mutex::new(state)) };
        let own = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let own = own.clone();
                tokio::spawn(async move { own.serve(stream).await });
            }
        });
        server
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// An address at this server.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.host())
    }

    /// From now on it does this wrong.
    pub(crate) fn fault(&self, fault: Fault) {
        self.state().fault = fault;
    }

    /// From now on tokens are said to be good for so many seconds.
    pub(crate) fn lifetime(&self, seconds: Option<u64>) {
        self.state().lifetime = seconds;
    }

    /// From now on refresh tokens stay the same.
    pub(crate) fn keeps_refresh_tokens(&self) {
        self.state().rotates = false;
    }

    /// From now on it takes so long to give tokens, and all refresh tokens are gone when one is used a second time.
    pub(crate) fn detects_reuse(&self, takes: Duration) {
        let mut state = self.state();
        (state.detects_reuse, state.takes) = (true, takes);
    }

    /// From now on there are no refresh tokens.
    pub(crate) fn gives_no_refresh_tokens(&self) {
        self.state().gives_refresh = false;
    }

    /// All tokens that it gave count no more.
    pub(crate) fn forget_tokens(&self) {
        let mut state = self.state();
        state.access.clear();
        state.refresh.clear();
    }

    /// All access tokens that it gave count no more.
    pub(crate) fn forget_access_tokens(&self) {
        self.state().access.clear();
    }

    /// How many access and refresh tokens count.
    pub(crate) fn good_tokens(&self) -> (usize, usize) {
        let state = self.state();
        (state.access.len(), state.refresh.len())
    }

    /// The fields of all requests to an endpoint.
    pub(crate) fn asked(&self, path: &str) -> Vec<HashMap<String, String>> {
        let state = self.state();
        state.asked.iter().filter(|(asked, _)| asked == path).map(|(_, fields)| fields.clone()).collect()
    }

    /// The requests for tokens of one kind.
    pub(crate) fn grants(&self, kind: &str) -> Vec<HashMap<String, String>> {
        let mut asked = self.asked("/token");
        asked.retain(|fields| fields.get("grant_type").is_some_and(|given| given.ends_with(kind)));
        asked
    }

    /// A person opens the link, signs in and agrees: where the browser is sent then.
    pub(crate) async fn sign_in(&self, link: &str) -> String {
        self.browse(link).await
    }

    /// A person opens the link and says no: where the browser is sent then.
    pub(crate) async fn deny(&self, link: &str) -> String {
        self.browse(&format!("{link}&person=denies")).await
    }

    async fn browse(&self, link: &str) -> String {
        let path = link.strip_prefix(&self.url("")).unwrap_or_else(|| panic!("{link} leads here"));
        let mut stream = TcpStream::connect(self.host()).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.host());
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let location = answer.lines().find_map(|line| line.strip_prefix("location: "));
        location.unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    async fn serve(&self, mut stream: TcpStream) {
        let Some(request) = read(&mut stream).await else { return };
        let fault = self.state().fault.clone();
        let token = request.path == "/token";
        if token && fault == Fault::Hang {
            self.note(&request);
            std::future::pending::<()>().await;
        }
        if token && fault == Fault::Huge {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"access_token\": \"";
            let _ = stream.write_all(head.as_bytes()).await;
            while stream.write_all(&[b'x'; 1 << 16]).await.is_ok() {}
            return;
        }
        let answer = self.answer(&request);
        let takes = if token { self.state().takes } else { Duration::ZERO };
        tokio::time::sleep(takes).await;
        let _ = stream.write_all(answer.as_bytes()).await;
    }

    fn note(&self, request: &Request) {
        self.state().asked.push((request.path.clone(), request.fields.clone()));
    }

    fn answer(&self, request: &Request) -> String {
        self.note(request);
        match request.path.as_str() {
            "/consent" if !request.fields.contains_key("person") => {
                http(200, "text/html; charset=utf-8", CONSENT)
            }
            "/authorize" | "/consent" => self.authorize(&request.fields),
            "/token" => self.token(request),
            "/revoke" => self.revoke(request),
            "/.well-known/openid-configuration" => self.discovery(),
            "/jwks" => self.jwks(),
            "/api" => self.api(request),
            "/shop" => shop(request),
            _ => json_answer(404, &json!({"error": "no such page"})),
        }
    }

    fn authorize(&self, fields: &HashMap<String, String>) -> String {
        let field = |name: &str| fields.get(name).cloned().unwrap_or_default();
        let redirect = field("redirect_uri");
        // At which port programs of this machine listen is their own business (RFC 8252, 7.3).
        let is_known = redirect == REDIRECT || redirect.starts_with("http://127.0.0.1:");
        if !is_known || ![CLIENT, PUBLIC_CLIENT, KEY_CLIENT].contains(&field("client_id").as_str()) {
            return json_answer(400, &json!({"error": "an unknown client or redirect"}));
        }
        let mut state = self.state();
        let lies = state.fault == Fault::LiesAboutState || field("person") == "lies";
        let given = if lies { "another".to_owned() } else { field("state") };
        let mut to = format!("{redirect}?state={}", encode(&given));
        let is_right = field("response_type") == "code" && field("code_challenge_method") == "S256";
        if !is_right {
            to.push_str("&error=invalid_request");
        } else if field("person") == "denies" {
            to.push_str("&error=access_denied&error_description=The+person+said+no");
        } else {
            state.count += 1;
            let code = format!("code-CANARY-{}", state.count);
            let issued = Code {
                client: field("client_id"),
                redirect,
                challenge: field("code_challenge"),
                nonce: fields.get("nonce").cloned(),
                scope: field("scope"),
            };
            state.codes.insert(code.clone(), issued);
            let _ = write!(to, "&code={code}");
        }
        format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    }

    fn token(&self, request: &Request) -> String {
        let fault = self.state().fault.clone();
        match &fault {
            Fault::Html => return http(200, "text/html", "<html><h1>Please sign in</h1></html>"),
            Fault::Broken => return http(500, "text/plain", "oh no: secret-CANARY-of-the-server"),
            Fault::HalfJson => return http(200, "application/json", "{\"access_token\": \"access-CANARY"),
            Fault::Redirect => {
                let to = self.url("/stolen");
                return format!(
                    "HTTP/1.1 307 X\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
            }
            Fault::Refuses(error) => {
                let sent = json!(request.fields).to_string();
                return json_answer(400, &json!({"error": error, "error_description": sent}));
            }
            _ => {}
        }
        match self.granted(request) {
            Ok(mut granted) => {
                if let Fault::Says(fields) = &fault {
                    change(&mut granted, fields);
                }
                json_answer(200, &granted)
            }
            Err((status, error)) => json_answer(status, &json!({"error": error})),
        }
    }

    fn granted(&self, request: &Request) -> Result<Value, (u16, &'static str)> {
        let fields = &request.fields;
        let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
        let kind = field("grant_type");
        let is_account = kind == "urn:ietf:params:oauth:grant-type:jwt-bearer";
        let client = match is_account {
            true => String::new(),
            false => self.client(request).ok_or((401, "invalid_client"))?,
        };
        let mut state = self.state();
        match kind {
            "authorization_code" => {
                let code = state.codes.remove(field("code")).ok_or((400, "invalid_grant"))?;
                let is_right = code.client == client
                    && code.redirect == field("redirect_uri")
                    && code.challenge == challenge(field("code_verifier"))
                    && state.fault != Fault::ExpiresCodes;
                if !is_right {
                    return Err((400, "invalid_grant"));
                }
                let mut granted = state.grant(&code.scope, true);
                if code.scope.split(' ').any(|scope| scope == "openid") {
                    let token = self.id_token(&state.fault, code.nonce.as_deref(), &client);
                    change(&mut granted, &json!({"id_token": token}));
                }
                Ok(granted)
            }
            "refresh_token" => {
                let is_used = !state.used.insert(field("refresh_token").to_owned()) && state.rotates;
                if is_used && state.detects_reuse {
                    state.refresh.clear();
                    state.access.clear();
                }
                let scope = state.refresh.get(field("refresh_token")).cloned();
                let scope = scope.ok_or((400, "invalid_grant"))?;
                if state.rotates {
                    state.refresh.remove(field("refresh_token"));
                }
                let with_refresh = state.rotates;
                Ok(state.grant(&scope, with_refresh))
            }
            "client_credentials" if client != PUBLIC_CLIENT => Ok(state.grant(field("scope"), false)),
            "urn:ietf:params:oauth:grant-type:token-exchange" => {
                let access = state.access.contains_key(field("subject_token"));
                if field("subject_token") != SUBJECT_TOKEN && !access && state.fault != Fault::Accepts {
                    return Err((400, "invalid_request"));
                }
                let mut granted = state.grant(field("scope"), false);
                let kind = "urn:ietf:params:oauth:token-type:access_token";
                change(&mut granted, &json!({"issued_token_type": kind}));
                Ok(granted)
            }
            _ if is_account => {
                let token = Token::read(field("assertion")).map_err(|_| (400, "invalid_grant"))?;
                let claims = token.claims(&key_set()).map_err(|_| (400, "invalid_grant"))?;
                if claims["iss"] != ACCOUNT || claims["aud"] != self.url("/token") {
                    return Err((400, "invalid_grant"));
                }
                Ok(state.grant(claims["scope"].as_str().unwrap_or_default(), false))
            }
            _ => Err((400, "unsupported_grant_type")),
        }
    }

    fn id_token(&self, fault: &Fault, nonce: Option<&str>, client: &str) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut claims = json!({"iss": self.url(""), "aud": client, "sub": "ann-CANARY", "iat": now,
            "exp": now + 600, "nonce": nonce});
        match fault {
            Fault::Claims(fields) => change(&mut claims, fields),
            Fault::Slash => change(&mut claims, &json!({"iss": self.url("/")})),
            _ => {}
        }
        let id = if *fault == Fault::NoKey { "k2" } else { "k1" };
        let token = SigningKey::from_pem(PRIVATE_KEY, Some(id.into())).unwrap().sign(&claims).unwrap();
        match fault {
            Fault::Forges => {
                let at = token.len() - 20;
                let other = if token.as_bytes()[at] == b'A' { "B" } else { "A" };
                format!("{}{other}{}", &token[..at], &token[at + 1..])
            }
            _ => token,
        }
    }

    fn revoke(&self, request: &Request) -> String {
        if self.state().fault == Fault::Broken {
            return http(503, "text/plain", "later");
        }
        if self.client(request).is_none() {
            return json_answer(401, &json!({"error": "invalid_client"}));
        }
        let token = request.fields.get("token").cloned().unwrap_or_default();
        let mut state = self.state();
        // With a refresh token go all that came of it.
        if state.refresh.remove(&token).is_some() {
            state.access.clear();
        }
        state.access.remove(&token);
        http(200, "text/plain", "")
    }

    /// Which client asks, if it is who it says.
    fn client(&self, request: &Request) -> Option<String> {
        let field = |name: &str| request.fields.get(name).cloned();
        let (id, secret) = match &request.authorization {
            Some(header) => {
                let pair = String::from_utf8(base64(header.strip_prefix("Basic ")?)).ok()?;
                let (id, secret) = pair.split_once(':')?;
                (decode(id), Some(decode(secret)))
            }
            None => (field("client_id")?, field("client_secret")),
        };
        let is_right = match id.as_str() {
            CLIENT => secret.as_deref() == Some(CLIENT_SECRET),
            PUBLIC_CLIENT => secret.is_none(),
            KEY_CLIENT => secret.is_none() && self.is_signed(&request.fields).is_some(),
            _ => false,
        };
        is_right.then_some(id)
    }

    /// Whether the client has signed that it asks this server, and not before with the same words.
    fn is_signed(&self, fields: &HashMap<String, String>) -> Option<()> {
        let kind = fields.get("client_assertion_type")?;
        let token = Token::read(fields.get("client_assertion")?).ok()?;
        let key = json!({"kty": "EC", "kid": "c1", "crv": "P-256", "x": CLIENT_X, "y": CLIENT_Y});
        let claims = token.claims(&KeySet::parse(&json!({"keys": [key]}).to_string()).unwrap()).ok()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let is_right = kind == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            && token.key_id() == Some("c1")
            && (claims["iss"] == KEY_CLIENT && claims["sub"] == KEY_CLIENT)
            && [self.url("/token"), self.url("")].iter().any(|own| claims["aud"] == own.as_str())
            && (now + 1..now + 600).contains(&claims["exp"].as_u64()?)
            && self.state().used.insert(claims["jti"].as_str()?.to_owned());
        is_right.then_some(())
    }

    fn discovery(&self) -> String {
        let mut document = json!({
            "issuer": self.url(""),
            "authorization_endpoint": self.url("/authorize"),
            "token_endpoint": self.url("/token"),
            "revocation_endpoint": self.url("/revoke"),
            "jwks_uri": self.url("/jwks"),
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
        });
        match &self.state().fault {
            Fault::Discovery(fields) => change(&mut document, fields),
            Fault::Slash => change(&mut document, &json!({"issuer": self.url("/")})),
            _ => {}
        }
        json_answer(200, &document)
    }

    fn jwks(&self) -> String {
        http(200, "application/json", &public_keys())
    }

    /// A service that wants a token, and says for what it was given.
    fn api(&self, request: &Request) -> String {
        let token = request.authorization.as_deref().and_then(|all| all.strip_prefix("Bearer "));
        match token.and_then(|token| self.state().access.get(token).cloned()) {
            Some(scope) => json_answer(200, &json!({"scope": scope, "weather": "sunny"})),
            None => {
                let head = "HTTP/1.1 401 X\r\nwww-authenticate: Bearer error=\"invalid_token\"";
                format!("{head}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            }
        }
    }
}

impl State {
    /// A new token, and a way to renew it.
    fn grant(&mut self, scope: &str, with_refresh: bool) -> Value {
        self.count += 1;
        let access = format!("access-CANARY-{}", self.count);
        self.access.insert(access.clone(), scope.to_owned());
        let mut granted = json!({"access_token": access, "token_type": "Bearer", "scope": scope});
        if let Some(lifetime) = self.lifetime {
            change(&mut granted, &json!({"expires_in": lifetime}));
        }
        if with_refresh && self.gives_refresh {
            let refresh = format!("refresh-CANARY-{}", self.count);
            self.refresh.insert(refresh.clone(), scope.to_owned());
            change(&mut granted, &json!({"refresh_token": refresh}));
        }
        granted
    }
}

/// A service that wants a key.
fn shop(request: &Request) -> String {
    match request.fields.get("key").map(String::as_str) {
        Some(SHOP_KEY) => json_answer(200, &json!({"ordered": true})),
        _ => json_answer(401, &json!({"error": "no such key"})),
    }
}

fn public_keys() -> String {
    json!({"keys": [{"kty": "RSA", "kid": "k1", "use": "sig", "alg": "RS256", "n": MODULUS, "e": "AQAB"}]})
        .to_string()
}

fn key_set() -> KeySet {
    KeySet::parse(&public_keys()).unwrap()
}

/// Puts fields into an object; `null` takes one away.
fn change(object: &mut Value, fields: &Value) {
    let object = object.as_object_mut().unwrap();
    for (name, value) in fields.as_object().unwrap() {
        match value {
            Value::Null => object.remove(name),
            value => object.insert(name.clone(), value.clone()),
        };
    }
}

/// What a verifier is asked for by (S256).
fn challenge(verifier: &str) -> String {
    use ::base64::Engine;
    use sha2::Digest;
    ::base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(sha2::Sha256::digest(verifier))
}

fn base64(text: &str) -> Vec<u8> {
    use ::base64::Engine;
    ::base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}

fn json_answer(status: u16, value: &Value) -> String {
    http(status, "application/json", &value.to_string())
}

fn http(status: u16, kind: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

async fn read(stream: &mut TcpStream) -> Option<Request> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let header = |name: &str| {
                head.lines().find_map(|line| {
                    let (own, value) = line.split_once(": ")?;
                    own.eq_ignore_ascii_case(name).then(|| value.to_owned())
                })
            };
            if body.len() >= header("content-length").map_or(0, |length| length.parse().unwrap()) {
                let target = head.split(' ').nth(1)?;
                let (path, query) = target.split_once('?').unwrap_or((target, ""));
                let mut fields = form(query);
                if header("content-type").is_some_and(|kind| kind == "application/x-www-form-urlencoded") {
                    fields.extend(form(body));
                }
                let authorization = header("authorization");
                return Some(Request { path: path.to_owned(), fields, authorization });
            }
        }
        match stream.read(&mut buffer).await {
            Ok(count @ 1..) => bytes.extend_from_slice(&buffer[..count]),
            _ => return None,
        }
    }
}

/// The fields of a form or a query.
pub(crate) fn form(text: &str) -> HashMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let decoded = pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(name), decode(value))
    });
    decoded.collect()
}

fn decode(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits: String = rest.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&digits, 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}

fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => encoded.push(byte.into()),
            byte => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}
