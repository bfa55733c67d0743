//! Who is answered.

use actix_web::Error;
use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{AUTHORIZATION, HOST};
use actix_web::middleware::Next;
use actix_web::web;
use events::ids::Digest;

use super::http::Settings;
use super::refused::Refused;

/// Paths that tell nothing of anyone's jobs.
const OPEN: [&str; 2] = ["/health", "/openapi.json"];

/// Lets through who has the token, or, where none is asked for, who calls this host by a local name:
/// a page in a browser that made its own name point here does not.
pub(super) async fn guard(
    settings: web::Data<Settings>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let refused = match &settings.token {
        Some(token) => {
            let given = header(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
            // Digests are compared, so the time it takes tells nothing of the token.
            let right = given.is_some_and(|given| Digest::of(given.trim().as_bytes()) == *token);
            (!right && !OPEN.contains(&request.path())).then_some(Refused::NoToken)
        }
        None => (!header(HOST).is_some_and(is_local)).then_some(Refused::OtherHost),
    };
    match refused {
        Some(refused) => Ok(request.into_response(refused.response()).map_into_right_body()),
        None => next.call(request).await.map(ServiceResponse::map_into_left_body),
    }
}

fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let address = name.parse::<std::net::IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn only_local_names_are_local() {
        for host in ["127.0.0.1:80", "localhost", "LOCALHOST:9", "[::1]:80", "127.9.9.9"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["example.org:80", "10.0.0.1", "localhost.example.org", "", "[::2]:80"] {
            assert!(!is_local(host), "{host}");
        }
    }
}
