//! Why a request was not met, as a typed answer that names the thing and the fix.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::RETRY_AFTER;
use events::ids::JobId;
use events::log::LogError;
use serde_json::{Value, json};

/// Why a request was not met.
#[derive(Debug)]
pub enum Refused {
    /// A field of the request is not right.
    Bad {
        /// Which: `candidate`, `jobs[3].seed`; `body` for the whole.
        field: String,
        /// What is wrong with it.
        message: String,
        /// What would be right.
        fix: String,
    },
    /// The body is longer than `limit` bytes.
    TooLarge {
        /// In bytes.
        limit: usize,
    },
    /// The body is not called JSON.
    NotJson,
    /// There is no token, or another one.
    NoToken,
    /// The request names another host than this one.
    OtherHost,
    /// There is no such path.
    NoPath,
    /// The path does not know this method.
    NoMethod,
    /// There is no such job.
    Unknown(JobId),
    /// The client's name for a job stands for another one.
    Conflict(JobId),
    /// The job is over, so there is nothing to cancel.
    Over(JobId),
    /// No room in the queue.
    Full {
        /// How many may wait.
        room: usize,
        /// When to come again, in seconds.
        retry_after: u64,
    },
    /// The service is going down.
    Stopping,
    /// Log or blobs do not take or give what they should.
    Log(LogError),
    /// A bug of this program.
    Broken(String),
}

impl From<LogError> for Refused {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ((_, code), (message, fix)) = (self.kind(), self.words());
        write!(f, "{code}: {message} ({fix})")
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Log(error) => Some(error),
            _ => None,
        }
    }
}

impl actix_web::ResponseError for Refused {
    fn status_code(&self) -> StatusCode {
        self.kind().0
    }

    fn error_response(&self) -> HttpResponse {
        self.response()
    }
}

impl Refused {
    /// A field of the request is not right.
    pub fn bad(field: &str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Bad { field: field.to_owned(), message: message.into(), fix: fix.into() }
    }

    /// Status and word.
    fn kind(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Bad { .. } => (StatusCode::BAD_REQUEST, "bad_request"),
            Self::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            Self::NotJson => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json"),
            Self::NoToken => (StatusCode::UNAUTHORIZED, "unauthorized"),
            Self::OtherHost => (StatusCode::FORBIDDEN, "other_host"),
            Self::NoPath => (StatusCode::NOT_FOUND, "no_path"),
            Self::NoMethod => (StatusCode::METHOD_NOT_ALLOWED, "no_method"),
            Self::Unknown(_) => (StatusCode::NOT_FOUND, "no_job"),
            Self::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
            Self::Over(_) => (StatusCode::CONFLICT, "over"),
            Self::Full { .. } => (StatusCode::TOO_MANY_REQUESTS, "full"),
            Self::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
            Self::Log(_) => (StatusCode::SERVICE_UNAVAILABLE, "storage"),
            Self::Broken(_) => (StatusCode::INTERNAL_SERVER_ERROR, "bug"),
        }
    }

    /// What is wrong, and what would be right.
    fn words(&self) -> (String, String) {
        let (message, fix): (String, &str) = match self {
            Self::Bad { message, fix, .. } => (message.clone(), fix),
            Self::TooLarge { limit } => (
                format!("the body is longer than {limit} bytes"),
                "send smaller batches, or start the service with a higher --body-limit-mib",
            ),
            Self::NotJson => {
                ("the body must be JSON".into(), "send it with Content-Type: application/json")
            }
            Self::NoToken => (
                "this service asks for a token".into(),
                "send Authorization: Bearer with the content of the service's --token-file",
            ),
            Self::OtherHost => (
                "without a token only local names are answered".into(),
                "use 127.0.0.1 or localhost, or start the service with --token-file",
            ),
            Self::NoPath => ("there is no such path".into(), "GET /openapi.json names all paths"),
            Self::NoMethod => (
                "this path does not know this method".into(),
                "GET /openapi.json names all paths and methods",
            ),
            Self::Unknown(id) => {
                (format!("there is no job {id}"), "use an id that a submission returned")
            }
            Self::Conflict(id) => (
                format!("this client_id stands for another job, {id}"),
                "use another client_id, or submit exactly the same job",
            ),
            Self::Over(id) => (
                format!("the job {id} is over"),
                "read its result; only jobs that are queued or running can be cancelled",
            ),
            Self::Full { room, .. } => (
                format!("the queue has room for {room} jobs"),
                "try again after Retry-After seconds; a batch must fit as a whole",
            ),
            Self::Stopping => (
                "the service is going down".into(),
                "try again when it is up; what it acknowledged is kept",
            ),
            Self::Log(error) => (
                error.to_string(),
                "nothing was acknowledged; see to the service's disk, then try again",
            ),
            Self::Broken(what) => {
                (what.clone(), "this is a bug of the service: its own messages tell more")
            }
        };
        (message, fix.to_owned())
    }

    /// The answer.
    pub fn response(&self) -> HttpResponse {
        let ((status, code), (message, fix)) = (self.kind(), self.words());
        let field = match self {
            Self::Bad { field, .. } => json!(field),
            _ => Value::Null,
        };
        let mut response = HttpResponse::build(status);
        if let Self::Full { retry_after, .. } = self {
            response.insert_header((RETRY_AFTER, retry_after.to_string()));
        }
        let error = json!({ "code": code, "field": field, "message": message, "fix": fix });
        response.json(json!({ "error": error }))
    }
}
