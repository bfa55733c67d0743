//! The paths of the service. What they say is in `openapi.json`; a test holds the two together.

use std::time::Duration;

use actix_web::http::header;
use actix_web::middleware::from_fn;
use actix_web::rt::time::{Instant, timeout};
use actix_web::{HttpRequest, HttpResponse, web};
use events::ids::{JobId, Seq};
use events::service::{End, Stage};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::guard::guard;
use super::jobs::{Service, Submission};
use super::refused::Refused;
use super::view::View;
use super::{fresh, query, request};

/// What is answered to what, beside the jobs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Longest body, in bytes.
    pub body_limit: usize,
    /// Most jobs in one batch.
    pub batch_most: usize,
    /// The token's digest; without one only local names are answered.
    pub token: Option<events::ids::Digest>,
    /// What judges: device, layers, versions.
    pub about: Value,
}

type Answer = Result<HttpResponse, Refused>;

/// What the document says of the service.
pub const OPENAPI: &str = include_str!("openapi.json");
/// How much of a body that is too long is read and thrown away: whoever still sends does not listen.
const DRAIN: usize = 64 << 20;
/// A body must be here within this time.
const BODY_TIME: Duration = Duration::from_secs(60);
/// A stream says at least this often that it lives.
const STREAM_SIGN: Duration = Duration::from_secs(15);

/// All paths.
pub fn routes(config: &mut web::ServiceConfig) {
    let no_method = || web::to(|| async { Answer::Err(Refused::NoMethod) });
    let at = |path: &str| web::resource(path).default_service(no_method());
    let scope = web::scope("")
        .wrap(from_fn(guard))
        .service(at("/health").get(health))
        .service(at("/openapi.json").get(openapi))
        .service(at("/v1/judge").post(submit).get(list))
        .service(at("/v1/judge/batch").post(submit_batch))
        .service(at("/v1/judge/{id}").get(show).delete(cancel))
        .service(at("/v1/judge/{id}/events").get(events))
        .default_service(web::to(|| async { Answer::Err(Refused::NoPath) }));
    config.service(scope);
}

async fn health(service: web::Data<Service>, settings: web::Data<Settings>) -> Answer {
    if service.stopping() {
        return Err(Refused::Stopping);
    }
    let mut object = settings.about.clone();
    object["status"] = json!("ok");
    object["queue"] = figures(&service);
    Ok(HttpResponse::Ok().json(object))
}

async fn openapi() -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(OPENAPI)
}

async fn submit(
    service: web::Data<Service>,
    settings: web::Data<Settings>,
    request: HttpRequest,
    payload: web::Payload,
) -> Answer {
    let body = body(&request, payload, settings.body_limit).await?;
    let views = take_in(service.clone(), move || {
        request::one(&body, fresh).map(|submission| vec![submission])
    });
    let views = views.await?;
    let view = views.first().ok_or_else(|| Refused::Broken("no job came of it".into()))?;
    let mut answer = if view.is_over() { HttpResponse::Ok() } else { HttpResponse::Accepted() };
    answer.insert_header((header::LOCATION, format!("/v1/judge/{}", view.id)));
    Ok(answer.json(service.object(view)?))
}

async fn submit_batch(
    service: web::Data<Service>,
    settings: web::Data<Settings>,
    request: HttpRequest,
    payload: web::Payload,
) -> Answer {
    let body = body(&request, payload, settings.body_limit).await?;
    let most = settings.batch_most;
    let views = take_in(service, move || request::batch(&body, most, fresh)).await?;
    let lines: Vec<Value> = views.iter().map(View::line).collect();
    Ok(HttpResponse::Accepted().json(json!({ "jobs": lines })))
}

/// Reads and records off the thread that serves others.
async fn take_in(
    service: web::Data<Service>,
    read: impl FnOnce() -> Result<Vec<Submission>, Refused> + Send + 'static,
) -> Result<Vec<View>, Refused> {
    let done = web::block(move || read().and_then(|wanted| service.submit(wanted))).await;
    done.map_err(|e| Refused::Broken(e.to_string()))?
}

async fn body(
    request: &HttpRequest,
    mut payload: web::Payload,
    limit: usize,
) -> Result<Vec<u8>, Refused> {
    let reading = async {
        let (mut bytes, mut seen) = (Vec::new(), 0_usize);
        while let Some(chunk) = payload.next().await {
            let early = |e| Refused::bad("body", format!("it ended early: {e}"), "send it whole");
            let chunk = chunk.map_err(early)?;
            seen += chunk.len();
            match seen {
                fits if fits <= limit => bytes.extend_from_slice(&chunk),
                far if far > limit.saturating_add(DRAIN) => break,
                _ => bytes.clear(),
            }
        }
        if seen > limit { Err(Refused::TooLarge { limit }) } else { Ok(bytes) }
    };
    let slow = |_| Refused::bad("body", "it took too long to come", "send it within a minute");
    let bytes = timeout(BODY_TIME, reading).await.map_err(slow)??;
    let named = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = named.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    // A page in somebody's browser can send other kinds to a local service without being asked.
    if kind.eq_ignore_ascii_case("application/json") { Ok(bytes) } else { Err(Refused::NotJson) }
}

async fn list(service: web::Data<Service>, request: HttpRequest) -> Answer {
    let asked = query::list(request.query_string())?;
    let state = asked.state.as_deref();
    let views = match &asked.client {
        Some(name) => {
            let named = service.view(JobId::named(name)).ok();
            let wanted = |view: &View| state.is_none_or(|state| state == view.state());
            named.filter(wanted).into_iter().collect()
        }
        None => service.list(Seq(asked.after), asked.limit, state),
    };
    let next = views.last().filter(|_| views.len() == asked.limit).map(|view| view.job.at);
    let lines: Vec<Value> = views.iter().map(View::line).collect();
    let queue = figures(&service);
    Ok(HttpResponse::Ok().json(json!({ "queue": queue, "jobs": lines, "next": next })))
}

async fn show(service: web::Data<Service>, id: web::Path<String>, request: HttpRequest) -> Answer {
    let (id, wait) = (query::id(&id)?, query::wait(request.query_string())?);
    let accepts = request.headers().get(header::ACCEPT).and_then(|kind| kind.to_str().ok());
    if accepts.is_some_and(|kinds| kinds.contains("text/event-stream")) {
        return stream(service, id);
    }
    let end = Instant::now() + wait;
    let mut changes = service.changes();
    loop {
        let view = service.view(id)?;
        let over = view.is_over() || service.stopping();
        let left = end.saturating_duration_since(Instant::now());
        if over || timeout(left, changes.changed()).await.is_err() {
            return Ok(HttpResponse::Ok().json(service.object(&view)?));
        }
    }
}

async fn events(service: web::Data<Service>, id: web::Path<String>) -> Answer {
    let id = query::id(&id)?;
    stream(service, id)
}

/// An event for each change of the job, the last one with its result.
fn stream(service: web::Data<Service>, id: JobId) -> Answer {
    service.view(id)?;
    let changes = service.changes();
    let feed = stream::unfold(Some((service, changes, Value::Null)), move |state| async move {
        let (service, mut changes, told) = state?;
        loop {
            let view = service.view(id).ok()?;
            let line = view.line();
            if line != told {
                let object = service.object(&view).ok()?;
                let text = format!("event: job\ndata: {object}\n\n");
                let more = (!view.is_over()).then_some((service, changes, line));
                return Some((Ok::<_, std::io::Error>(web::Bytes::from(text)), more));
            }
            if service.stopping() {
                return None;
            }
            if timeout(STREAM_SIGN, changes.changed()).await.is_err() {
                let sign = web::Bytes::from_static(b": waiting\n\n");
                return Some((Ok(sign), Some((service, changes, told))));
            }
        }
    });
    let mut answer = HttpResponse::Ok();
    answer.content_type("text/event-stream").insert_header((header::CACHE_CONTROL, "no-store"));
    Ok(answer.streaming(Box::pin(feed)))
}

async fn cancel(service: web::Data<Service>, id: web::Path<String>) -> Answer {
    let id = query::id(&id)?;
    let changing = service.clone();
    let view = web::block(move || changing.cancel(id)).await;
    let view = view.map_err(|e| Refused::Broken(e.to_string()))??;
    debug_assert!(matches!(view.job.stage, Stage::Ended(End::Cancelled)));
    Ok(HttpResponse::Ok().json(service.object(&view)?))
}

fn figures(service: &Service) -> Value {
    let figures = service.figures();
    let counts = figures.counts;
    json!({
        "queued": counts.pending - figures.running as u64, "running": figures.running,
        "done": counts.judged, "cancelled": counts.cancelled, "failed": counts.given_up,
        "room": figures.room,
    })
}
