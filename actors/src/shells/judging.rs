//! Validator, CompileWorker and GpuExecutor: three questions to the judge.

use std::sync::Arc;

use events::event::{Actor, CompileOutcome, Event};
use events::ids::{BlobId, Seq};
use events::outcome::{Execution, Failure, FailureKind};
use events::rules::validity::validity;
use events::rules::work::{self, BuildOrder, MeasureOrder};

use super::sampler::Table;
use super::{Failed, Limits, Shell, caused, text};
use crate::desk::Desk;
use crate::ports::{Judge, MeasureJob, WorldFailed};

/// Does `act` for the first `limit` orders at the same time and returns the results in their order.
/// What succeeded before the first failure is returned; a failure alone is an error.
fn together<O: Sync, T: Send>(
    orders: &[O],
    limit: usize,
    act: impl Fn(&O) -> Result<T, Failed> + Sync,
) -> Result<Vec<T>, Failed> {
    let results: Vec<Result<T, Failed>> = std::thread::scope(|scope| {
        let act = &act;
        let start = |order| scope.spawn(move || act(order));
        let running: Vec<_> = orders.iter().take(limit.max(1)).map(start).collect();
        // The daemon aborts on a panic, so there a thread always has a result.
        let panicked = || Err(WorldFailed("a judge thread ended without a result".into()).into());
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    let mut done = Vec::new();
    for result in results {
        match result {
            Ok(value) => done.push(value),
            Err(error) if done.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

macro_rules! judging_shell {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        pub(super) struct $name {
            judge: Arc<dyn Judge>,
            limits: Limits,
        }

        impl $name {
            pub(super) fn new(judge: Arc<dyn Judge>, limits: Limits) -> Self {
                Self { judge, limits }
            }
        }
    };
}

/// Says whether modules are valid.
pub(super) struct Validator {
    judge: Arc<dyn Judge>,
    limits: Limits,
    table: Table,
}

impl Validator {
    pub(super) fn new(judge: Arc<dyn Judge>, limits: Limits) -> Self {
        Self { judge, limits, table: Table::default() }
    }
}

impl Shell for Validator {
    fn actor(&self) -> Actor {
        Actor::Validator
    }

    fn work(&mut self, desk: &Desk<'_>) -> Result<bool, Failed> {
        let (orders, config, table) = desk.ask(|state| {
            let config = state.config.as_ref().map(|c| c.validator.clone());
            (work::modules_to_validate(state), config, state.api_table)
        })?;
        let (false, Some(config), Some(table)) = (orders.is_empty(), config, table) else {
            return Ok(false);
        };
        let tracked = self.table.get(desk, table)?.apis();
        let events = together(&orders, self.limits.judges, |order| {
            let code = order.source.map(|id| text(desk, id)).transpose()?;
            let draw = (order.seed, config.trials.get());
            let report = self.judge.module_report(code.as_deref(), &order.asked, &tracked, draw)?;
            let validity = validity(&report, &order.asked, &config);
            let event = Event::ModuleValidated { module: order.module, report, validity };
            Ok(caused(order.cause, event))
        })?;
        desk.append(Actor::Validator, events)?;
        Ok(true)
    }
}

judging_shell! {
    /// Applies the static rules and builds.
    CompileWorker
}

impl CompileWorker {
    fn outcome(&self, desk: &Desk<'_>, source: Option<BlobId>) -> Result<CompileOutcome, Failed> {
        let Some(id) = source else {
            let failure = Failure::new(FailureKind::NoCode, "the answer holds no code block");
            return Ok(CompileOutcome::Rejected(failure));
        };
        let code = text(desk, id)?;
        let backend = match self.judge.kernel_source(&code) {
            Ok(backend) => backend,
            Err(failure) => return Ok(CompileOutcome::Rejected(failure)),
        };
        Ok(match self.judge.build(&code, backend)? {
            Ok(key) => CompileOutcome::Built { backend, key },
            Err(failure) => CompileOutcome::Rejected(failure),
        })
    }
}

impl Shell for CompileWorker {
    fn actor(&self) -> Actor {
        Actor::CompileWorker
    }

    fn work(&mut self, desk: &Desk<'_>) -> Result<bool, Failed> {
        let orders = desk.ask(work::kernels_to_build)?;
        if orders.is_empty() {
            return Ok(false);
        }
        let events = together(&orders, self.limits.judges, |order: &BuildOrder| {
            let outcome = self.outcome(desk, order.source)?;
            Ok(caused(order.cause, Event::KernelCompiled { kernel: order.kernel, outcome }))
        })?;
        desk.append(Actor::CompileWorker, events)?;
        Ok(true)
    }
}

judging_shell! {
    /// Runs, compares and times.
    GpuExecutor
}

impl GpuExecutor {
    fn measure(
        &self,
        desk: &Desk<'_>,
        order: &MeasureOrder,
        trials: u32,
    ) -> Result<(Option<Seq>, Event), Failed> {
        let job = MeasureJob {
            module_source: text(desk, order.module_source)?,
            kernel_source: text(desk, order.source)?,
            backend: order.backend,
            seed: order.seed,
            trials,
            timing: order.timing,
        };
        let measurement = self.judge.measure(&job)?;
        if measurement.execution == Execution::NoDevice {
            let text =
                "a CUDA kernel needs a GPU and there is none: set judge.backend = \"triton\"";
            return Err(WorldFailed(text.into()).into());
        }
        let event = Event::KernelMeasured { kernel: order.kernel, measurement };
        Ok(caused(order.cause, event))
    }
}

impl Shell for GpuExecutor {
    fn actor(&self) -> Actor {
        Actor::GpuExecutor
    }

    fn work(&mut self, desk: &Desk<'_>) -> Result<bool, Failed> {
        let (orders, trials) = desk.ask(|state| {
            let trials = state.config.as_ref().map_or(1, |c| c.judge.trials.get());
            (work::kernels_to_measure(state), trials)
        })?;
        if orders.is_empty() {
            return Ok(false);
        }
        let events =
            together(&orders, self.limits.judges, |order| self.measure(desk, order, trials))?;
        desk.append(Actor::GpuExecutor, events)?;
        Ok(true)
    }
}
