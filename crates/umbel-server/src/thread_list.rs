//! The list of a user's threads, in pages, with titles, and how it is searched. No log is read for it.

use axum::extract::{Request, State};
use axum::response::Response;
use http::{StatusCode, Uri};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::str::FromStr;
use umbel_core::{Idle, IdleFilter, SessionKey, Versions};

use crate::app::Offered;
use crate::post::principal;
use crate::problem::Problem;
use crate::resolve::Asking;
use crate::routes::{answer, query};

/// So many threads are on a page at most, and so many are searched: those that changed last.
const MOST: usize = 200;

/// A thread in the list.
struct Listed {
    offered: Offered,
    idle: Idle,
}

impl Listed {
    /// Where it is in the list.
    fn place(&self) -> Place {
        Place(self.idle.updated_at, self.idle.versions.incarnation)
    }

    /// Whether each of these words is in its title or its name.
    fn has(&self, words: &[String]) -> bool {
        let title = self.idle.title.as_deref().unwrap_or_default().to_lowercase();
        let name = self.idle.key.id().to_lowercase();
        words.iter().all(|word| title.contains(word) || name.contains(word))
    }

    fn form(&self) -> Value {
        let Self { offered, idle } = self;
        json!({
            "threadId": idle.key.id(),
            "updatedAt": idle.updated_at,
            "title": idle.title,
            "running": idle.held || offered.app.runs.of_thread(&idle.key).is_some(),
            "waiting": idle.questions > 0 || idle.awaited_calls > 0,
        })
    }
}

/// A place in the list: when a thread last changed, and what tells it from those that changed with it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place(f64, u64);

impl Place {
    /// Whether this comes after that: what changed last comes first.
    fn is_after(&self, other: &Self) -> bool {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1)).is_lt()
    }

    /// A session at this place.
    fn session(self, key: SessionKey) -> Idle {
        Idle {
            key,
            updated_at: self.0,
            versions: Versions { incarnation: self.1, ..Versions::default() },
            held: false,
            abandoned: false,
            questions: 0,
            awaited_calls: 0,
            title: None,
            bytes: 0,
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}.{:x}", self.0.to_bits(), self.1)
    }
}

impl FromStr for Place {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let number = |text| u64::from_str_radix(text, 16).ok();
        let place = text.split_once('.').and_then(|(time, id)| Some((number(time)?, number(id)?)));
        let place = place.map(|(time, id)| Self(f64::from_bits(time), id)).filter(|place| !place.0.is_nan());
        place.ok_or_else(|| invalid("`after` is no place in the list: send `next` as it came"))
    }
}

fn invalid(message: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "INVALID_INPUT", message)
}

/// A number of the query.
pub(crate) fn number(uri: &Uri, name: &str) -> Result<Option<usize>, Problem> {
    let text = query(uri, name).map(|text| text.parse().map_err(|_| text));
    text.transpose().map_err(|_| invalid(&format!("`{name}` is a whole number")))
}

/// `GET {agent}/threads`.
pub(crate) async fn threads(State(offered): State<Offered>, request: Request) -> Result<Response, Problem> {
    let (head, _) = request.into_parts();
    let principal = principal(&head)?;
    let asking = Asking { head: &head, principal: &principal, input: None };
    let limit = number(&head.uri, "limit")?.unwrap_or(MOST).clamp(1, MOST);
    let after: Option<Place> = query(&head.uri, "after").map(|text| text.parse()).transpose()?;
    let words = query(&head.uri, "search").unwrap_or_default().to_lowercase();
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let mut found = if words.is_empty() {
        // One more tells whether there are more.
        newest(&offered, &asking, after, limit + 1).await?
    } else {
        let all = newest(&offered, &asking, None, MOST).await?;
        let fits =
            |listed: &Listed| listed.has(&words) && after.is_none_or(|at| listed.place().is_after(&at));
        all.into_iter().filter(fits).collect()
    };
    let is_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| is_more).map(|last| last.place().to_string());
    let threads: Vec<Value> = found.iter().map(Listed::form).collect();
    Ok(answer(StatusCode::OK, &json!({"threads": threads, "next": next})))
}

/// The threads that changed last, from behind a place on.
async fn newest(
    offered: &Offered,
    asking: &Asking<'_>,
    after: Option<Place>,
    limit: usize,
) -> Result<Vec<Listed>, Problem> {
    let (mut all, mut seen) = (Vec::new(), HashSet::new());
    for candidate in offered.candidates(asking)? {
        let any = candidate.endpoint.key(asking.head, asking.principal, "-")?;
        let after = after.map(|place| place.session(any.clone()));
        let filter =
            IdleFilter { after: after.as_ref(), ..IdleFilter::before(f64::INFINITY).user(any.user()) };
        let filter = filter.newest_first().limit(limit);
        let found = candidate.endpoint.runner.sessions().idle(any.app(), filter).await?;
        // Agents may share their sessions. Where they do not and a name is there twice, the first is the one that the name
        // stands for on all routes.
        let found = found.into_iter().filter(|idle| seen.insert(idle.key.clone()));
        all.extend(found.map(|idle| Listed { offered: candidate.clone(), idle }));
    }
    all.sort_by(|a, b| match a.place().is_after(&b.place()) {
        true => std::cmp::Ordering::Greater,
        false if a.place() == b.place() => std::cmp::Ordering::Equal,
        false => std::cmp::Ordering::Less,
    });
    all.truncate(limit);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_the_list_is_read_as_it_was_written_and_nothing_else_is_one() {
        let place = Place(1_760_000_000.25, u64::MAX);
        assert_eq!(place.to_string().parse::<Place>().unwrap(), place);
        for text in ["", "1", "x.1", "1.", "7ff8000000000000.1", "-1.1"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }
}
