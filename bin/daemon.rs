//! The daemon: owns one run's log, wires ports into actors, serves status on loopback.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix_web::{App, HttpResponse, HttpServer, web};
use actors::attached::Gate;
use actors::shells::Limits;
use actors::system::{End, run};
use actors::{Bus, Shells};
use anyhow::{Context, Result};
use clap::Parser;
use events::ids::RunId;
use events::log::Blobs;
use store::{Home, OpenMode};

use crate::attach::residents::Residents;
use crate::attach::socket::Doors;
use crate::engine::ChildEngine;
use crate::exit::{Exit, Usage};
use crate::host::HostConfig;
use crate::judge::KeckJudge;
use crate::kept;
use crate::plan::{Plan, fits};
use crate::runs::{pick, require_blobs, unfinished};
use crate::summary;

/// Runs a co-evolution and owns its log. Stops cleanly on SIGTERM and SIGINT.
#[derive(Debug, Parser)]
#[command(name = "kernelzerod", version)]
pub struct Arguments {
    /// Config of the run; goes on with the newest run in --home if that has the same config.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Go on with this run instead.
    #[arg(long, conflicts_with = "config")]
    run: Option<RunId>,
    /// Start a new run even if one with this config is unfinished.
    #[arg(long, requires = "config")]
    new: bool,
    /// Where runs live.
    #[arg(long, default_value = "runs")]
    home: PathBuf,
    /// What only changes the machine.
    #[arg(long)]
    host: Option<PathBuf>,
    /// Port for status and metrics on 127.0.0.1; 0 is any free one.
    #[arg(long)]
    port: Option<u16>,
    /// End when the run is over instead of serving its status until stopped.
    #[arg(long)]
    exit_when_done: bool,
}

/// Everything a daemon does, from its arguments to its exit code.
pub fn serve(arguments: &Arguments) -> Result<Exit> {
    let mut host = HostConfig::read(arguments.host.as_deref())?;
    host.port = arguments.port.unwrap_or(host.port);
    let plan = arguments.config.as_deref().map(Plan::read).transpose()?;
    // What a run needs is looked for before anything is recorded.
    host.python()?;
    host.engine()?;
    host.torch_libraries()?;
    let home = Home::open(&arguments.home)?;
    let listener = std::net::TcpListener::bind(("127.0.0.1", host.port)).with_context(|| {
        format!("port {} on 127.0.0.1 is in use: give another with --port", host.port)
    })?;
    let (id, log) = open(&home, arguments, plan.as_ref(), &host)?;
    if let Some(cut) = &log.recovery().cut {
        tracing::warn!(?cut, "a torn tail was cut: it was never acknowledged");
    }
    let blobs: Arc<dyn Blobs> = Arc::new(home.blobs()?);
    let state = kept::state_of(&log)?;
    require_blobs(&state, blobs.as_ref())?;
    kept::keep(&log, &state);
    let bus = Arc::new(Bus::at(state, log.clone(), blobs.clone()));
    let run_dir = home.run_dir(id);
    // Before the judge, which takes seconds to start.
    let machine = host.clone();
    let gate = Gate::new(bus.clone(), move |config| fits(config, &machine))?;
    let doors = Doors::open(&run_dir, id, gate.clone())?;
    let engine = ChildEngine::new(&host, home.blobs()?, &run_dir)?;
    let (killer, last_killer) = (engine.killer(), engine.killer());
    let scratch = run_dir.join("judge");
    std::fs::create_dir_all(&scratch)?;
    let judge = Arc::new(KeckJudge::new(&host, &scratch)?);
    resume_if_paused(&bus)?;
    let stopped = stop_on_signal(&bus, killer)?;
    let address = listener.local_addr()?;
    let port_file = run_dir.join("daemon.json");
    let about = serde_json::json!({ "pid": std::process::id(), "port": address.port() });
    std::fs::write(&port_file, about.to_string())?;
    serve_status(listener, bus.clone())?;
    // Before any work: what the actors of the config ask for at once is recorded first.
    let residents = Residents::start(&gate, &blobs)?;
    tracing::info!(run = %id, %address, "running");
    let limits = Limits { samples: host.samples_at_once, judges: host.judges() };
    let shells = Shells::new(Box::new(engine), judge, limits);
    let end = run(&bus, shells);
    // The actors' threads live until the process ends, so what they hold is cleared away here.
    last_killer.kill();
    for folder in ["weights", "judge"] {
        let _ = std::fs::remove_dir_all(run_dir.join(folder));
    }
    let exit = end.map_err(Into::into).and_then(|end| finish(end, &bus, arguments, &stopped));
    residents.close();
    doors.close();
    let _ = std::fs::remove_file(&port_file);
    // Nothing is appended any more, or the state is gone.
    let _ = bus.ask(|state| kept::keep(&log, state));
    exit
}

fn finish(end: End, bus: &Bus, arguments: &Arguments, stopped: &AtomicBool) -> Result<Exit> {
    let text = bus.ask(summary::text)?;
    tracing::info!(?end, "{text}");
    if !arguments.exit_when_done && end != End::Stopped {
        while !stopped.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(match end {
        End::Finished | End::Stopped => Exit::Ok,
        End::Paused => Exit::Paused,
    })
}

fn open(
    home: &Home,
    arguments: &Arguments,
    plan: Option<&Plan>,
    host: &HostConfig,
) -> Result<(RunId, Arc<store::FileLog>)> {
    let existing = match (plan, arguments.run) {
        (None, named) => Some(pick(home, named)?),
        (Some(_), _) if arguments.new => None,
        (Some(plan), _) => unfinished(home, &plan.config)?,
    };
    match (existing, plan) {
        (Some(run), _) => {
            let log = home.open_run(run, OpenMode::Own)?;
            Ok((run, Arc::new(log)))
        }
        (None, Some(plan)) => {
            plan.check_machine(host)?;
            plan.check_policies(host)?;
            plan.start(home)
        }
        (None, None) => Err(Usage("give --config or --run".to_owned()).into()),
    }
}

/// Whoever starts a daemon on a paused run wants it to go on.
fn resume_if_paused(bus: &Bus) -> Result<()> {
    let (paused, last) = bus.ask(|state| (state.paused.is_some(), state.last))?;
    if paused {
        let resumed = (Some(last), events::event::Event::RunResumed);
        bus.append(events::event::Actor::RunControl, vec![resumed])?;
    }
    Ok(())
}

/// How long a stop waits for what is under way, such as a measurement.
const GRACE: Duration = Duration::from_secs(30);

fn stop_on_signal(bus: &Arc<Bus>, killer: crate::engine::Killer) -> Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let stopped = Arc::new(AtomicBool::new(false));
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    let (bus, flag) = (bus.clone(), stopped.clone());
    std::thread::spawn(move || {
        for signal in signals.forever() {
            tracing::info!(signal, "stopping: nothing new is begun, what is recorded is safe");
            flag.store(true, Ordering::SeqCst);
            bus.stop();
            // A job of the engine may take minutes; it is drawn again after a restart.
            killer.kill();
            std::thread::spawn(|| {
                std::thread::sleep(GRACE);
                tracing::warn!(
                    "what is under way takes too long: it is left, and done again later"
                );
                // What is appended is durable, and workers end with their parent.
                std::process::exit(Exit::Ok as i32);
            });
        }
    });
    Ok(stopped)
}

fn serve_status(listener: std::net::TcpListener, bus: Arc<Bus>) -> Result<()> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let system = actix_web::rt::System::new();
        let outcome = system.block_on(async move {
            let server = HttpServer::new(move || {
                App::new()
                    .app_data(web::Data::from(bus.clone()))
                    .route("/status", web::get().to(status))
                    .route("/metrics", web::get().to(metrics))
                    .route("/health", web::get().to(health))
            });
            let server = server.workers(1).disable_signals().listen(listener)?.run();
            let _ = sender.send(());
            server.await
        });
        if let Err(error) = outcome {
            tracing::error!(%error, "status server");
        }
    });
    receiver.recv().context("the status server did not start")
}

async fn status(bus: web::Data<Bus>) -> HttpResponse {
    match bus.ask(summary::status) {
        Ok(status) => HttpResponse::Ok().json(status),
        Err(error) => HttpResponse::ServiceUnavailable().body(error.to_string()),
    }
}

async fn health(bus: web::Data<Bus>) -> HttpResponse {
    match bus.ask(|_| ()) {
        Ok(()) => HttpResponse::Ok().body("ok\n"),
        Err(error) => HttpResponse::ServiceUnavailable().body(error.to_string()),
    }
}

async fn metrics(bus: web::Data<Bus>) -> HttpResponse {
    match bus.ask(prometheus) {
        Ok(text) => HttpResponse::Ok().content_type("text/plain; version=0.0.4").body(text),
        Err(error) => HttpResponse::ServiceUnavailable().body(error.to_string()),
    }
}

fn prometheus(state: &events::state::RunState) -> String {
    use events::ids::Role;
    let mut lines = vec![
        format!("kernelzero_events_total {}", state.last.0),
        format!("kernelzero_progress_ratio {}", summary::progress(state)),
        format!("kernelzero_modules_total {}", state.totals.modules.all),
        format!("kernelzero_modules_valid_total {}", state.totals.modules.right),
        format!("kernelzero_kernels_judged_total {}", state.totals.kernels.all),
        format!("kernelzero_kernels_right_total {}", state.totals.kernels.right),
        format!("kernelzero_world_failures_total {}", state.totals.world_failures),
    ];
    for role in [Role::Proposer, Role::Coder] {
        let tokens = state.totals.tokens.get(&role).copied().unwrap_or(0);
        lines.push(format!("kernelzero_sampled_tokens_total{{policy=\"{role}\"}} {tokens}"));
        let steps = state.version(role).steps;
        lines.push(format!("kernelzero_optimizer_steps_total{{policy=\"{role}\"}} {steps}"));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Process and port of the daemon that owns a run, if one does. What `daemon.json` says counts only
/// as long as the run's lock is held: a process number may belong to another program by now. The port
/// is 0 while the daemon is starting.
pub fn about(run_dir: &Path) -> Option<(i32, u16)> {
    let owner = store::owner(run_dir)?;
    let text = std::fs::read_to_string(run_dir.join("daemon.json")).unwrap_or_default();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let pid = i32::try_from(owner).ok()?;
    let says = value["pid"].as_i64() == Some(i64::from(pid));
    let port = value["port"].as_u64().filter(|_| says).and_then(|port| u16::try_from(port).ok());
    Some((pid, port.unwrap_or(0)))
}
