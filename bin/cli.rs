//! The command line: what can be asked, and who answers.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};
use events::config::Rules;
use events::ids::{Role, RunId};
use events::intent::{ActorName, Intent};

use crate::branch::{self, At, Change};
use crate::exit::Exit;

mod attach;
mod auditing;
mod batch;
mod branching;
mod care;
mod cases;
mod coldstart;
mod compare;
mod effects;
mod evaluate;
mod inspect;
mod judging;
mod rescore;
mod run;
mod show;
mod taint;

/// Trains two language models against each other and keeps every fact in a durable log.
#[derive(Debug, Parser)]
#[command(name = "kernelzero", version)]
pub struct Cli {
    /// Where runs live.
    #[arg(long, global = true, default_value = "runs")]
    home: PathBuf,
    /// What only changes the machine (TOML).
    #[arg(long, global = true)]
    host: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

/// Which run a command is about.
#[derive(Clone, Debug, Args)]
struct Which {
    /// The run; the newest if absent.
    #[arg(long)]
    run: Option<RunId>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Profile {
    Paper,
    Strict,
}

impl From<Profile> for Rules {
    fn from(profile: Profile) -> Rules {
        match profile {
            Profile::Paper => Rules::Paper,
            Profile::Strict => Rules::Strict,
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a run and watch it, or attach to one that is under way.
    Run(run::Arguments),
    /// Stop the daemon of a run; what is recorded is safe.
    Stop(Which),
    /// Where a run stands.
    Status {
        #[command(flatten)]
        which: Which,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Events of a run.
    Log(care::LogCommand),
    /// The causal chain of a set, module, kernel or group, from API set to gradient step.
    Show(show::Arguments),
    /// Fold the log and compare with the live state.
    Replay {
        #[command(flatten)]
        which: Which,
    },
    /// Recompute every decision of a run and compare. Exit code 1: something does not agree.
    Audit(auditing::Arguments),
    /// Copy all runs to a new folder, also while daemons write; the copy is a home itself.
    Backup {
        /// The new folder.
        to: PathBuf,
    },
    /// Make the home of --home from a backup; nothing is overwritten.
    Restore {
        /// The backup.
        from: PathBuf,
    },
    /// Remove blobs that no event of any run names. Exit code 5: someone uses the blobs.
    Gc(care::GcArguments),
    /// Write a run, the runs that it branched from and their blobs into one archive.
    Export {
        /// The run.
        run: RunId,
        /// The new file (tar, zstd).
        to: PathBuf,
    },
    /// Add the run of an archive to the home; a run that is there already is refused.
    Import {
        /// The archive.
        from: PathBuf,
    },
    /// What scores, batches and figures of a run would be by other rules. Runs nothing.
    Rescore(rescore::Arguments),
    /// What a kernel, module, rule or judge that is found wrong has fed, and the last clean checkpoint.
    Taint(taint::Arguments),
    /// Branch a run before a round, or where something found wrong began to feed it, and go on from
    /// there; the old tail stays as it is.
    Restart(branching::Restart),
    /// Branch a run at any event and go on from there, with other settings if some are given.
    Fork {
        #[command(flatten)]
        which: Which,
        /// Number of an event, round:N, proposer:N or coder:N (after that policy's Nth step); step:N where
        /// only one policy took so many.
        #[arg(long)]
        at: At,
        /// KEY=VALUE of the config, as in judge.profile=paper; may be given several times.
        #[arg(long = "set", value_parser = branch::change)]
        changes: Vec<Change>,
        /// Make the branch and do not start it.
        #[arg(long)]
        only: bool,
    },
    /// Runs beside each other: figures by step and paired differences with intervals.
    Compare(compare::Arguments),
    /// Change settings of a run: KEY=VALUE, or KEY= to take one away. In a step, from the next one on.
    Set {
        #[command(flatten)]
        which: Which,
        /// As in coder.beta=0.5.
        #[arg(required = true, value_parser = branch::change)]
        changes: Vec<Change>,
    },
    /// Let a policy take no more gradient steps, from now on; it still samples.
    Freeze {
        #[command(flatten)]
        which: Which,
        /// proposer or coder.
        #[arg(value_parser = role)]
        role: Role,
        /// After so many of its own steps; at once if it has taken more.
        #[arg(long, default_value_t = 0)]
        at_step: u32,
    },
    /// Let a frozen policy learn again.
    Thaw {
        #[command(flatten)]
        which: Which,
        /// proposer or coder.
        #[arg(value_parser = role)]
        role: Role,
    },
    /// Attach a program to a run: it sees events and may ask for things. It may leave at any time.
    Attach(attach::Arguments),
    /// End the connection of an attached actor; the log says who did. One of the config comes back with the
    /// next daemon.
    Detach {
        /// The run. It must be running.
        run: RunId,
        /// What the actor is called in the log.
        name: ActorName,
    },
    /// Judge one kernel against its reference. Exit code 1: it is not right.
    Judge(judging::JudgeArguments),
    /// Judge many kernels from a JSONL file or a folder; resumes. Exit code 3: some could not be judged.
    JudgeBatch(batch::Arguments),
    /// Judge a folder of cases with known outcomes. Exit code 1: one is not as expected.
    JudgeCases(cases::Arguments),
    /// Judge what is submitted over HTTP, until stopped. Jobs survive a restart.
    Serve(crate::service::Arguments),
    /// Validate one module. Exit code 1: it is not valid.
    Validate(judging::ValidateArguments),
    /// Check what this machine has.
    Doctor {
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Make judged training pairs for a cold start.
    Distill(coldstart::DistillArguments),
    /// Train a policy from pairs; hands over to the engine.
    Sft {
        /// Passed to `kernelzero-engine sft`; `-- --help` tells.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// How often a config's policies are right on held-out API sets and modules.
    Evaluate(evaluate::Arguments),
}

impl Cli {
    /// Does what was asked.
    pub fn execute(self) -> Result<Exit> {
        let Cli { home, host, command } = self;
        let host = crate::host::HostConfig::read(host.as_deref())?;
        match command {
            Command::Run(arguments) => run::run(&home, &arguments),
            Command::Stop(which) => run::stop(&home, which.run),
            Command::Status { which, json } => inspect::status(&home, which.run, json),
            Command::Log(command) => care::log(&home, &command),
            Command::Show(arguments) => show::show(&home, &arguments),
            Command::Replay { which } => inspect::replay(&home, which.run),
            Command::Rescore(arguments) => rescore::rescore(&home, &arguments),
            Command::Taint(arguments) => taint::taint(&home, &arguments),
            Command::Audit(arguments) => auditing::audit(&home, &host, &arguments),
            Command::Backup { to } => care::backup(&home, &to),
            Command::Restore { from } => care::restore(&home, &from),
            Command::Gc(arguments) => care::gc(&home, &arguments),
            Command::Export { run, to } => care::export(&home, run, &to),
            Command::Import { from } => care::import(&home, &from),
            Command::Restart(arguments) => branching::restart(&home, &arguments),
            Command::Fork { which, at, changes, only } => {
                branching::fork(&home, which.run, at, &changes, only)
            }
            Command::Compare(arguments) => compare::run(&home, &arguments),
            Command::Set { which, changes } => {
                let set = |(key, value)| Intent::Set { key, value, at: None };
                let intents: Vec<Intent> = changes.into_iter().map(set).collect();
                branching::set(&home, which.run, &intents)
            }
            Command::Freeze { which, role: policy, at_step } => {
                branching::set(&home, which.run, &[Intent::Freeze { policy, at_step }])
            }
            Command::Thaw { which, role: policy } => {
                branching::set(&home, which.run, &[Intent::Thaw { policy }])
            }
            Command::Attach(arguments) => attach::attach(&home, arguments),
            Command::Detach { run, name } => attach::detach(&home, run, name),
            Command::JudgeBatch(arguments) => batch::judge_batch(&host, &arguments),
            Command::JudgeCases(arguments) => cases::judge_cases(&host, &arguments),
            Command::Serve(arguments) => crate::service::serve(&home, &host, &arguments),
            Command::Judge(arguments) => judging::judge(&host, &arguments),
            Command::Validate(arguments) => judging::validate(&host, &arguments),
            Command::Doctor { json } => judging::doctor(&host, json),
            Command::Distill(arguments) => coldstart::distill(&host, &arguments),
            Command::Sft { arguments } => coldstart::sft(&host, &arguments),
            Command::Evaluate(arguments) => evaluate::evaluate(&host, &arguments),
        }
    }
}

fn role(text: &str) -> Result<Role, String> {
    match text {
        "proposer" => Ok(Role::Proposer),
        "coder" => Ok(Role::Coder),
        _ => Err(format!("{text}: give proposer or coder")),
    }
}
