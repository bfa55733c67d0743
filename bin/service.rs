//! The judge's HTTP service. Jobs are owned by a log of their own in `<home>/service`; what is
//! acknowledged is durable, and what has no end is judged after a restart.
#![allow(clippy::print_stdout)]

mod guard;
pub mod http;
pub mod jobs;
mod query;
pub mod refused;
pub mod request;
pub mod view;
pub mod work;

use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use actix_web::dev::ServerHandle;
use actix_web::{App, HttpServer, web};
use anyhow::{Context, Result};
use clap::Args;
use events::ids::{Digest, JobId, RunId};
use serde_json::json;
use store::{FileLog, Home, OpenMode};

use self::http::Settings;
use self::jobs::Service;
use crate::exit::{Exit, Usage};
use crate::host::HostConfig;
use crate::judge::KeckJudge;

/// What runs when the service is stopped has this long to end; the rest is judged after the restart.
const GRACE: Duration = Duration::from_secs(5);
/// Shortest token, in bytes.
const TOKEN_MIN: usize = 16;

/// `kernelzero serve`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Port; 0 is any free one.
    #[arg(long, default_value_t = 8790)]
    port: u16,
    /// Address to listen on. Any other than a local one needs --token-file.
    #[arg(long, default_value = "127.0.0.1")]
    listen: IpAddr,
    /// File with the token that clients must send as `Authorization: Bearer TOKEN`.
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// Jobs that may wait; more are answered with 429.
    #[arg(long, default_value_t = 4096)]
    queue: usize,
    /// Jobs in one batch.
    #[arg(long, default_value_t = 1024)]
    batch: usize,
    /// Longest body of a request, in MiB.
    #[arg(long, default_value_t = 8)]
    body_limit_mib: usize,
}

/// `kernelzero serve`: until SIGTERM or SIGINT.
///
/// # Errors
/// A call that makes no sense, a port in use, a log that another process owns or that is damaged, no
/// Python for the judge.
pub fn serve(home: &Path, host: &HostConfig, arguments: &Arguments) -> Result<Exit> {
    // A client that goes away must not end the service.
    // SAFETY: no other thread sets this signal's action, and the arguments are constants.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    crate::logging::to_stderr();
    let token = token(arguments)?;
    let listener = TcpListener::bind((arguments.listen, arguments.port)).with_context(|| {
        format!("cannot listen on {}, port {}", arguments.listen, arguments.port)
    })?;
    let address = listener.local_addr()?;
    let home = Home::open(home.join("service"))?;
    let (folder, log) = own(&home)?;
    let scratch = folder.join("judge");
    // What a killed service left there.
    let _ = std::fs::remove_dir_all(&scratch);
    std::fs::create_dir_all(&scratch)?;
    let judge = KeckJudge::new(host, &scratch)?;
    let workers = host.judges();
    let service = Service::open(log, Arc::new(home.blobs()?), arguments.queue.max(1), workers)?;
    let environment = [
        ("device", judge.device().to_owned()),
        ("layers", judge.layers().join(", ")),
        ("policy", keck::POLICY_VERSION.to_string()),
    ];
    service.started(environment.map(|(name, value)| (name.to_owned(), value)).to_vec())?;
    let about = json!({
        "device": judge.device(), "layers": judge.layers(), "workers": workers,
        "policy": keck::POLICY_VERSION, "judge": env!("CARGO_PKG_VERSION"),
    });
    let body_limit = arguments.body_limit_mib.clamp(1, 1024) << 20;
    let settings = Settings { body_limit, batch_most: arguments.batch.max(1), token, about };
    let service = web::Data::new(service);
    let judge = Arc::new(judge);
    for _ in 0..workers {
        let (service, judge) = (service.clone(), judge.clone());
        std::thread::spawn(move || work::work(&service, judge.as_ref()));
    }
    let server = start(listener, service.clone(), settings)?;
    println!("judging on http://{address}");
    wait_for_signal()?;
    tracing::info!("stopping: what is acknowledged is kept, what runs is judged after a restart");
    service.stop();
    let end = Instant::now() + GRACE;
    while service.figures().running > 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    actix_web::rt::System::new().block_on(server.stop(true));
    let _ = std::fs::remove_dir_all(&scratch);
    Ok(Exit::Ok)
}

fn token(arguments: &Arguments) -> Result<Option<Digest>> {
    let Some(path) = &arguments.token_file else {
        if arguments.listen.is_loopback() {
            return Ok(None);
        }
        let text = format!(
            "{} is reachable by others: give --token-file FILE with a token of at least {TOKEN_MIN} \
             bytes, or listen on 127.0.0.1",
            arguments.listen
        );
        return Err(Usage(text).into());
    };
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|e| Usage(format!("cannot read the token file {shown}: {e}")))?;
    let token = text.trim();
    if token.len() < TOKEN_MIN {
        return Err(Usage(format!("{shown}: a token has at least {TOKEN_MIN} bytes")).into());
    }
    Ok(Some(Digest::of(token.as_bytes())))
}

/// The one log of the service in `home`, always by the same name, so that two services that start
/// at once cannot have one each.
fn own(home: &Home) -> Result<(PathBuf, Arc<FileLog>)> {
    let id = RunId::new(0, *b"judge-jobs");
    let folder = home.run_dir(id);
    let there = folder.exists();
    let log = if there { home.open_run(id, OpenMode::Own)? } else { home.create_run(id)? };
    if let Some(cut) = &log.recovery().cut {
        tracing::warn!(?cut, "a torn tail was cut: it was never acknowledged");
    }
    Ok((folder, Arc::new(log)))
}

fn start(
    listener: TcpListener,
    service: web::Data<Service>,
    settings: Settings,
) -> Result<ServerHandle> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let settings = web::Data::new(settings);
    std::thread::spawn(move || {
        let outcome = actix_web::rt::System::new().block_on(async move {
            let server = HttpServer::new(move || {
                let app = App::new().app_data(service.clone()).app_data(settings.clone());
                app.configure(http::routes)
            });
            let server = server.workers(2).shutdown_timeout(2).disable_signals();
            let server = server.listen(listener)?.run();
            let _ = sender.send(server.handle());
            server.await
        });
        if let Err(error) = outcome {
            tracing::error!(%error, "HTTP server");
        }
    });
    receiver.recv().context("the HTTP server did not start")
}

fn wait_for_signal() -> Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    let _ = signals.forever().next();
    Ok(())
}

/// The id of a job that its client did not name.
fn fresh() -> JobId {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Random by the hasher's keys, which differ between processes and calls.
    let mut random = [0; 10];
    for part in random.chunks_mut(8) {
        use std::hash::{BuildHasher, Hasher};
        let bits = std::hash::RandomState::new().build_hasher().finish();
        part.copy_from_slice(&bits.to_le_bytes()[..part.len()]);
    }
    JobId::new(u64::try_from(since.as_millis()).unwrap_or(u64::MAX), random)
}
