//! What a provider's refusal means.

use std::time::{Duration, SystemTime};

use reqwest::header::HeaderMap;
use serde_json::Value;
use umbel_core::{Error, ErrorKind, ModelErrorKind};

/// A refusal, put in one form: each provider has its own.
#[derive(Debug, Default)]
struct Failure<'a> {
    /// The status of the answer; 0 if the refusal came in the middle of it.
    status: u16,
    /// What the provider calls it.
    code: Option<&'a str>,
    /// Its words.
    message: &'a str,
    retry_after: Option<Duration>,
    request_id: Option<&'a str>,
}

/// Longest wait that is believed.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

impl Failure<'_> {
    fn into_error(self, provider: &str) -> Error {
        let kind = classify(self.status, self.code.unwrap_or_default(), self.message);
        let mut message = format!("{provider}: {}", self.message.trim());
        let code = self.code.filter(|code| !code.is_empty());
        match (self.status, code) {
            (0, None) => {}
            (0, Some(code)) => message.push_str(&format!(" ({code})")),
            (status, None) => message.push_str(&format!(" ({status})")),
            (status, Some(code)) => message.push_str(&format!(" ({status}, {code})")),
        }
        if let Some(id) = self.request_id {
            message.push_str(&format!(" [request {id}]"));
        }
        let error = Error::new(ErrorKind::Model(kind), message);
        match self.retry_after {
            Some(after) => error.with_retry_after(after.min(LONGEST_WAIT)),
            None => error,
        }
    }
}

/// Words by which providers say that a request is too long. There is no code for it that all of them use.
const TOO_LONG: [&str; 17] = [
    "context_length_exceeded",
    "exceed_context_size",
    "maximum context length",
    "context window",
    "context size",
    "context length",
    "context limit",
    "maximum prompt length",
    "maximum model length",
    "prompt is too long",
    "input is too long",
    "too many tokens",
    "exceeds the maximum number of tokens",
    "token count exceeds",
    "tokens exceed",
    "reduce the length of the messages",
    "request_too_large",
];

const REFUSED: [&str; 6] =
    ["content_filter", "_policy", "responsibleai", "safety", "usage polic", "moderation"];

/// What kind of failure it is, by status, the provider's own code and, where those say too little, its words.
fn classify(status: u16, code: &str, message: &str) -> ModelErrorKind {
    let words = format!("{code} {message}").to_lowercase();
    let says = |needles: &[&str]| needles.iter().any(|needle| words.contains(needle));
    let code = code.to_ascii_lowercase();
    let is_request = matches!(status, 0 | 400 | 413 | 422 | 500);
    if is_request && says(&TOO_LONG) {
        return ModelErrorKind::ContextTooLong;
    }
    match code.as_str() {
        "authentication_error"
        | "permission_error"
        | "invalid_api_key"
        | "unauthenticated"
        | "permission_denied" => {
            return ModelErrorKind::Auth;
        }
        // Nothing that waiting helps against, though it comes as "too many requests".
        "insufficient_quota" | "billing_error" | "billing_not_active" => return ModelErrorKind::Auth,
        "rate_limit_error" | "rate_limit_exceeded" | "resource_exhausted" | "too_many_requests" => {
            return ModelErrorKind::RateLimited;
        }
        "overloaded_error" | "overloaded" | "unavailable" | "slow_down" | "timeout_error" => {
            return ModelErrorKind::Overloaded;
        }
        _ => {}
    }
    if says(&["api key not valid", "invalid api key", "incorrect api key"]) {
        return ModelErrorKind::Auth;
    }
    match status {
        401..=403 => ModelErrorKind::Auth,
        429 => ModelErrorKind::RateLimited,
        408 | 409 | 425 => ModelErrorKind::Transport,
        // The provider's own failure: another try may do.
        500..=599 => ModelErrorKind::Overloaded,
        400..=499 if says(&REFUSED) => ModelErrorKind::Refused,
        400..=499 => ModelErrorKind::BadRequest,
        _ if matches!(code.as_str(), "api_error" | "server_error" | "internal" | "internal_server_error") => {
            ModelErrorKind::Overloaded
        }
        _ if says(&REFUSED) => ModelErrorKind::Refused,
        _ if code.contains("invalid") => ModelErrorKind::BadRequest,
        _ => ModelErrorKind::Other,
    }
}

/// Reads a failure that came in the middle of an answer.
pub(crate) fn in_stream(provider: &str, error: &str) -> Error {
    let value: Option<Value> = serde_json::from_str(error).ok();
    let said = value.as_ref().map(said_in);
    let plain = plain_words(error);
    // Some say in its place what the status would have been.
    let status = value.as_ref().map(|value| value.get("error").unwrap_or(value).get("code"));
    let status = status.flatten().and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    Failure {
        status: status.filter(|status| (400..600).contains(status)).unwrap_or_default(),
        code: said.as_ref().and_then(|said| said.code.as_deref()),
        message: said.as_ref().and_then(|said| said.message.as_deref()).unwrap_or(&plain),
        ..Failure::default()
    }
    .into_error(provider)
}

/// Reads a refusal: the status, and a body in whichever form.
pub(crate) fn refusal(provider: &str, status: u16, headers: &HeaderMap, body: &str) -> Error {
    let value: Option<Value> = serde_json::from_str(body).ok();
    // Some wrap it in a list.
    let value = value.map(|value| match value {
        Value::Array(mut list) if list.len() == 1 => list.pop().unwrap_or_default(),
        other => other,
    });
    let said = value.as_ref().map(said_in);
    let plain = plain_words(body);
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let after = value.as_ref().and_then(retry_delay);
    Failure {
        status,
        code: said.as_ref().and_then(|said| said.code.as_deref()),
        message: said.as_ref().and_then(|said| said.message.as_deref()).unwrap_or(&plain),
        retry_after: retry_after(headers).or(after),
        request_id: ["x-request-id", "request-id", "apim-request-id"].into_iter().find_map(header),
    }
    .into_error(provider)
}

struct Said {
    code: Option<String>,
    message: Option<String>,
}

/// What stands in the body of a refusal.
fn said_in(value: &Value) -> Said {
    let error = value.get("error").filter(|error| !error.is_null()).unwrap_or(value);
    let text = |key: &str| match error.get(key) {
        Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
        _ => None,
    };
    let message = error.as_str().map(str::to_owned).or_else(|| text("message")).or_else(|| text("detail"));
    // The more exact one first.
    let code = text("code").or_else(|| text("status")).or_else(|| text("type"));
    Said { code, message }
}

/// The words of a body that is no JSON, such as a page of a proxy.
fn plain_words(body: &str) -> String {
    const MOST: usize = 200;
    let is_page = body.trim_start().starts_with('<');
    match body.trim() {
        _ if is_page => {
            "answered with a web page: is the address right, or is a proxy in between?".to_owned()
        }
        "" => "refused without a word".to_owned(),
        words => words.chars().take(MOST).collect(),
    }
}

/// How long to wait, as the headers say.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let header = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    if let Some(ms) = header("retry-after-ms").and_then(|ms| ms.parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(ms / 1000.0).ok();
    }
    let after = header("retry-after")?;
    match after.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => until(after),
    }
}

/// How long it is until a date such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn until(date: &str) -> Option<Duration> {
    let mut words = date.split_ascii_whitespace().skip(1);
    let day: u64 = words.next()?.parse().ok().filter(|day| (1..=31).contains(day))?;
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let year: u64 = words.next()?.parse().ok().filter(|year| (1970..10_000).contains(year))?;
    let mut time = words.next()?.split(':').map(|part| part.parse::<u64>().ok().filter(|part| *part < 61));
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    // Days since 1970, counted with years that begin in March.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day;
    let seconds = days.checked_sub(719_469)? * 86_400 + hour * 3600 + minute * 60 + second;
    let then = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    Some(then.duration_since(SystemTime::now()).unwrap_or_default())
}

/// How long to wait, as Google says it: `"retryDelay": "7.5s"` among the details.
fn retry_delay(body: &Value) -> Option<Duration> {
    let details = body.get("error")?.get("details")?.as_array()?;
    let delay = details.iter().find_map(|detail| detail.get("retryDelay"))?.as_str()?;
    Duration::try_from_secs_f64(delay.strip_suffix('s')?.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ModelErrorKind::*;

    #[test]
    fn refusals_of_all_providers_are_told_apart() {
        let table: [(u16, &str, ModelErrorKind); 26] = [
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000"}}"#,
                ContextTooLong,
            ),
            (
                400,
                r#"{"error":"This model's maximum prompt length is 131072 but the request contains 136973 tokens."}"#,
                ContextTooLong,
            ),
            (
                401,
                r#"{"error":{"message":"Incorrect API key","type":"invalid_request_error","code":"invalid_api_key"}}"#,
                Auth,
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"API key not valid","status":"INVALID_ARGUMENT"}}"#,
                Auth,
            ),
            (403, r#"{"type":"error","error":{"type":"permission_error","message":"no"}}"#, Auth),
            (
                429,
                r#"{"error":{"message":"slow","type":"requests","code":"rate_limit_exceeded"}}"#,
                RateLimited,
            ),
            (
                429,
                r#"{"error":{"message":"pay","type":"insufficient_quota","code":"insufficient_quota"}}"#,
                Auth,
            ),
            (429, r#"{"error":{"code":429,"message":"Quota","status":"RESOURCE_EXHAUSTED"}}"#, RateLimited),
            (
                529,
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                Overloaded,
            ),
            (
                503,
                r#"{"error":{"code":503,"message":"The model is overloaded","status":"UNAVAILABLE"}}"#,
                Overloaded,
            ),
            (503, "no healthy upstream", Overloaded),
            (500, r#"{"error":{"message":"The server had an error","type":"server_error"}}"#, Overloaded),
            (
                400,
                r#"{"error":{"message":"This model's maximum context length is 8192 tokens","code":"context_length_exceeded"}}"#,
                ContextTooLong,
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
                ContextTooLong,
            ),
            (
                413,
                r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#,
                ContextTooLong,
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}"#,
                ContextTooLong,
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}"#,
                ContextTooLong,
            ),
            (400, r#"{"error":{"message":"bad tool","type":"invalid_request_error"}}"#, BadRequest),
            (404, r#"{"error":"model 'x' not found"}"#, BadRequest),
            (422, r#"{"detail":"wrong"}"#, BadRequest),
            (400, r#"{"error":{"message":"filtered","code":"content_filter"}}"#, Refused),
            (408, "", Transport),
            (502, "<html>bad gateway</html>", Overloaded),
            (0, r#"{"type":"overloaded_error","message":"Overloaded"}"#, Overloaded),
            (0, r#"{"type":"api_error","message":"Internal"}"#, Overloaded),
            (0, r#"{"message":"odd"}"#, Other),
        ];
        for (status, body, kind) in table {
            let error = refusal("them", status, &HeaderMap::new(), body);
            assert_eq!(error.kind(), ErrorKind::Model(kind), "{status} {body}: {error}");
        }
    }

    #[test]
    fn failures_in_the_middle_of_an_answer_are_told_apart() {
        for (error, kind) in [
            (r#"{"code":502,"message":"Provider disconnected"}"#, Overloaded),
            (r#"{"error":{"code":429,"message":"slow"}}"#, RateLimited),
            (r#"{"code":"server_error","message":"The server had an error"}"#, Overloaded),
            (r#"{"code":"rate_limit_exceeded","message":"slow"}"#, RateLimited),
            (r#"{"code":"invalid_image","message":"no image"}"#, BadRequest),
            (r#"{"code":"invalid_prompt","message":"flagged by our usage policy"}"#, Refused),
            (r#"{"code":"bio_policy","message":"no"}"#, Refused),
            (r#"{"code":7,"message":"odd"}"#, Other),
        ] {
            assert_eq!(in_stream("them", error).kind(), ErrorKind::Model(kind), "{error}");
        }
    }

    #[test]
    fn an_error_says_who_what_and_which_request() {
        let mut headers = HeaderMap::new();
        headers.insert("request-id", "req_1".parse().unwrap());
        let body = r#"[{"error":{"code":429,"message":"Quota used up","status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"7.5s"}]}}]"#;
        let error = refusal("gemini", 429, &headers, body);
        assert_eq!(error.message(), "gemini: Quota used up (429, RESOURCE_EXHAUSTED) [request req_1]");
        assert_eq!(error.retry_after(), Some(Duration::from_millis(7500)));
        let page = refusal("openai", 502, &HeaderMap::new(), "<html>secret</html>");
        assert!(page.message().contains("a web page") && !page.message().contains("secret"));
    }

    #[test]
    fn waits_are_read_in_all_forms_and_nonsense_is_none() {
        let after = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(after("retry-after", "3"), Some(Duration::from_secs(3)));
        assert_eq!(after("retry-after-ms", "1500"), Some(Duration::from_millis(1500)));
        assert_eq!(after("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        let later = after("retry-after", "Fri, 01 Jan 2100 00:00:00 GMT").unwrap();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!((later + now).as_secs().abs_diff(4_102_444_800), 0);
        for nonsense in [
            "-3",
            "nan",
            "soon",
            "Sun, 99",
            "1e300",
            "Sun, 06 Nov 0 08:49:37 GMT",
            "Sun, 150000000000000 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(after("retry-after", nonsense), None, "{nonsense}");
        }
    }
}
