//! Starting, watching and stopping runs.
#![allow(clippy::print_stdout)]

use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use actors::attached::actor_name;
use anyhow::{Context, Result, anyhow};
use clap::Args;
use events::event::{Event, Recorded};
use events::ids::RunId;
use events::log::Log;
use events::state::{Position, RunState};
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use store::{FileLog, Home, OpenMode};

use crate::daemon;
use crate::exit::{Exit, Usage};
use crate::plan::Plan;
use crate::runs::{home_to_read, pick, unfinished};
use crate::{shown, summary};

/// `kernelzero run`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Config of the run: goes on with an unfinished one, else begins a new one.
    #[arg(long, required_unless_present = "run")]
    config: Option<PathBuf>,
    /// Go on with this run, or attach to it.
    #[arg(long, conflicts_with_all = ["config", "new"])]
    run: Option<RunId>,
    /// Start a new run even if one with this config is unfinished.
    #[arg(long)]
    new: bool,
    /// Start the daemon and return.
    #[arg(long)]
    detach: bool,
    /// Passed to the daemon: what only changes the machine.
    #[arg(long = "daemon-host")]
    host: Option<PathBuf>,
}

impl Arguments {
    fn host_options(&self) -> Vec<String> {
        let host = self.host.iter().flat_map(|p| ["--host".to_owned(), p.display().to_string()]);
        host.collect()
    }
}

/// `kernelzero run`.
pub fn run(dir: &Path, arguments: &Arguments) -> Result<Exit> {
    // Everything that can be refused is refused before a daemon starts.
    let home = Home::open(dir)?;
    let Some(config) = &arguments.config else {
        let run = pick(&home, arguments.run)?;
        if daemon::about(&home.run_dir(run)).is_some() {
            println!("attached to run {run}; Ctrl-C leaves it running");
            return watch(&home, run, None);
        }
        let options = ["--run".to_owned(), run.to_string()];
        return launch(
            &home,
            &[&options[..], &arguments.host_options()].concat(),
            arguments.detach,
        );
    };
    let plan = Plan::read(config)?;
    if !arguments.new
        && let Some(run) = unfinished(&home, &plan.config)?
        && daemon::about(&home.run_dir(run)).is_some()
    {
        println!("attached to run {run}; Ctrl-C leaves it running");
        return watch(&home, run, None);
    }
    let mut options = vec!["--config".to_owned(), config.display().to_string()];
    if arguments.new {
        options.push("--new".to_owned());
    }
    options.extend(arguments.host_options());
    launch(&home, &options, arguments.detach)
}

/// `kernelzero stop`.
pub fn stop(dir: &Path, run: Option<RunId>) -> Result<Exit> {
    let home = home_to_read(dir)?;
    let run = pick(&home, run)?;
    let Some((pid, _)) = daemon::about(&home.run_dir(run)) else {
        println!("run {run} has no daemon");
        return Ok(Exit::Ok);
    };
    kill(Pid::from_raw(pid), Signal::SIGTERM).with_context(|| format!("stopping process {pid}"))?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if daemon::about(&home.run_dir(run)).is_none() {
            println!("run {run} stopped");
            return Ok(Exit::Ok);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(anyhow!("process {pid} is still there after 60 s"))
}

/// Starts a daemon and watches what it runs.
pub(super) fn launch(home: &Home, options: &[String], detach: bool) -> Result<Exit> {
    let program = std::env::current_exe()?.with_file_name("kernelzerod");
    let log_path = home.dir().join("daemon.log");
    let log = std::fs::OpenOptions::new().create(true).append(true).open(&log_path);
    let log = log.with_context(|| format!("writing {}", log_path.display()))?;
    let start = log.metadata()?.len();
    let mut child = Command::new(&program)
        .args(options)
        .arg("--home")
        .arg(home.dir())
        .arg("--exit-when-done")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .process_group(0)
        .spawn()
        .with_context(|| format!("starting {}: run `make build`", program.display()))?;
    let Some(run) = wait_for_run(home, &mut child)? else {
        return died(&mut child, &log_path, start);
    };
    println!("run {run}, daemon {}, its log in {}", child.id(), log_path.display());
    if detach {
        return Ok(Exit::Ok);
    }
    watch(home, run, Some((child, log_path, start)))
}

/// The run that `child` owns, once it says so; `None` if it ended before.
fn wait_for_run(home: &Home, child: &mut Child) -> Result<Option<RunId>> {
    loop {
        for run in home.runs()?.into_iter().rev() {
            let owner = daemon::about(&home.run_dir(run)).map(|(pid, _)| pid);
            if owner.is_some_and(|pid| u32::try_from(pid) == Ok(child.id())) {
                return Ok(Some(run));
            }
        }
        if child.try_wait()?.is_some() {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Passes on what a daemon said last and how it ended.
fn died(child: &mut Child, log_path: &Path, start: u64) -> Result<Exit> {
    let status = child.wait()?;
    let log = std::fs::read(log_path)?;
    let said = String::from_utf8_lossy(&log[usize::try_from(start)?.min(log.len())..]).into_owned();
    let last: Vec<&str> = said.lines().rev().take(5).collect();
    for line in last.iter().rev() {
        eprintln!("{}", shown::line(line));
    }
    match status.code() {
        Some(0) => Ok(Exit::Ok),
        Some(1) => Ok(Exit::No),
        Some(2) => Err(Usage("the daemon refused its arguments, see above".into()).into()),
        Some(4) => Ok(Exit::Damaged),
        Some(5) => Ok(Exit::Owned),
        Some(6) => Ok(Exit::Paused),
        _ => Err(anyhow!("the daemon ended ({status}); its log is {}", log_path.display())),
    }
}

/// Follows a run until its daemon ends.
fn watch(home: &Home, run: RunId, mut owner: Option<(Child, PathBuf, u64)>) -> Result<Exit> {
    let log = home.open_run(run, OpenMode::ReadOnly)?;
    let mut view = View::new();
    loop {
        let alive = match &mut owner {
            Some((child, _, _)) => child.try_wait()?.is_none(),
            None => daemon::about(&home.run_dir(run)).is_some(),
        };
        view.catch_up(&log)?;
        if !alive {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    view.bar.finish_and_clear();
    print!("{}", summary::text(&view.state));
    println!("  head            {}", log.head().1);
    if view.state.position == Position::Finished {
        return Ok(Exit::Ok);
    }
    match owner {
        Some((mut child, log_path, start)) => died(&mut child, &log_path, start),
        None if view.state.paused.is_some() => Ok(Exit::Paused),
        None => Err(anyhow!("the daemon is gone; `kernelzero run` goes on from the log")),
    }
}

/// Progress with rates and the time left.
struct View {
    state: RunState,
    bar: ProgressBar,
    began: Instant,
    /// Tokens and progress when the watching began: rates are of this session.
    from: Option<(u64, f64)>,
}

impl View {
    fn new() -> Self {
        let bar = ProgressBar::new(1000);
        let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { state: RunState::default(), bar, began: Instant::now(), from: None }
    }

    fn catch_up(&mut self, log: &FileLog) -> Result<()> {
        loop {
            let read = log.read_after(self.state.last, 1024)?;
            if read.is_empty() {
                break;
            }
            for recorded in &read {
                self.state.apply(recorded.seq, &recorded.event)?;
                self.tell(recorded);
            }
        }
        let tokens = self.state.totals.tokens.values().sum();
        let progress = summary::progress(&self.state);
        let (tokens_before, progress_before) = *self.from.get_or_insert((tokens, progress));
        let elapsed = self.began.elapsed().as_secs_f64();
        let rate = (tokens - tokens_before) as f64 / elapsed.max(0.1);
        let left = if progress > progress_before {
            let seconds = elapsed * (1.0 - progress) / (progress - progress_before);
            format!("{} min left", (seconds / 60.0).ceil())
        } else {
            "time left unknown".to_owned()
        };
        self.bar.set_position((progress * 1000.0) as u64);
        let place = shown::line(&summary::position(&self.state));
        self.bar.set_message(format!("{place}, {rate:.0} tokens/s, {left}"));
        Ok(())
    }

    /// A line for each step, each failure of the world, and what others changed and noted.
    fn tell(&self, recorded: &Recorded) {
        let line = match &recorded.event {
            Event::StepTaken { step, update: Some(update), .. } => format!(
                "{step}: loss {:+.4}, KL {:.2e}, gradient norm {:.2e}, {} tokens trained; \
                 so far {:.0} % of modules valid, {:.0} % of kernels right",
                update.loss,
                update.kl,
                update.grad_norm,
                update.tokens,
                100.0 * self.state.totals.modules.share(),
                100.0 * self.state.totals.kernels.share(),
            ),
            Event::StepTaken { step, update: None, .. } => {
                format!("{step}: no group with a signal, no update")
            }
            Event::WorkFailed { work, attempt, error } => {
                format!("the world failed at {work}, attempt {attempt}: {error}")
            }
            Event::RunPaused { reason } => format!("paused: {reason}"),
            Event::Noted { text } => format!("{}: {text}", actor_name(recorded.actor)),
            Event::SettingChanged { key, value } => {
                let value = value.as_deref().unwrap_or("(taken away)");
                format!("{}: {key} = {value}", actor_name(recorded.actor))
            }
            Event::SettingPlanned { key, value, from } => {
                let value = value.as_deref().unwrap_or("(taken away)");
                format!("{}: {key} = {value} from {from} on", actor_name(recorded.actor))
            }
            _ => return,
        };
        let line = shown::line(&line);
        if std::io::stderr().is_terminal() {
            self.bar.println(format!("{} {line}", recorded.seq));
        } else {
            println!("{} {line}", recorded.seq);
        }
    }
}
