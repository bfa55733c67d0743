//! Reads paths and queries.

use std::time::Duration;

use actix_web::web::Query;
use events::ids::JobId;

use super::refused::Refused;

/// Longest poll, in seconds.
const WAIT_MAX: u64 = 300;
/// Most jobs in one list.
const LIMIT_MAX: u64 = 1000;
const STATES: [&str; 5] = ["queued", "running", "done", "cancelled", "failed"];

/// What `GET /v1/judge` asks for.
pub(super) struct List {
    pub state: Option<String>,
    pub client: Option<String>,
    pub after: u64,
    pub limit: usize,
}

/// The id in a path.
pub(super) fn id(text: &str) -> Result<JobId, Refused> {
    let fix = "use an id that a submission returned";
    text.parse().map_err(|e: events::ids::BadId| Refused::bad("id", e.to_string(), fix))
}

/// How long `?wait=SECONDS` waits.
pub(super) fn wait(text: &str) -> Result<Duration, Refused> {
    let mut wait = 0;
    for (name, value) in pairs(text)? {
        match name.as_str() {
            "wait" => wait = number("wait", &value, 0, WAIT_MAX)?,
            _ => return Err(unknown(&name, "wait")),
        }
    }
    Ok(Duration::from_secs(wait))
}

/// What a list asks for.
pub(super) fn list(text: &str) -> Result<List, Refused> {
    let mut asked = List { state: None, client: None, after: 0, limit: 100 };
    for (name, value) in pairs(text)? {
        match name.as_str() {
            "state" if STATES.contains(&value.as_str()) => asked.state = Some(value),
            "state" => {
                let fix = format!("give one of {}", STATES.join(", "));
                return Err(Refused::bad("state", format!("there is no state {value}"), fix));
            }
            "client_id" => asked.client = Some(value),
            "after" => asked.after = number("after", &value, 0, u64::MAX)?,
            "limit" => {
                let limit = number("limit", &value, 1, LIMIT_MAX)?;
                asked.limit = usize::try_from(limit).unwrap_or(1);
            }
            _ => return Err(unknown(&name, "state, client_id, after, limit")),
        }
    }
    Ok(asked)
}

fn pairs(text: &str) -> Result<Vec<(String, String)>, Refused> {
    let read = Query::<Vec<(String, String)>>::from_query(text);
    let wrong = |e: actix_web::error::QueryPayloadError| {
        Refused::bad("query", e.to_string(), "give name=value pairs joined by &")
    };
    read.map(Query::into_inner).map_err(wrong)
}

fn unknown(name: &str, known: &str) -> Refused {
    let name: String = name.chars().take(80).collect();
    Refused::bad(&name, "there is no such parameter", format!("parameters are {known}"))
}

fn number(name: &str, value: &str, least: u64, most: u64) -> Result<u64, Refused> {
    let read = value.parse().ok().filter(|n| (least..=most).contains(n));
    let fix = format!("give a whole number from {least} to {most}");
    read.ok_or_else(|| Refused::bad(name, "it is not such a number", fix))
}
