//! Three-stage validation: facts in, verdict out.

use crate::config::{Rules, ValidatorConfig};
use crate::event::{Stage, Validity};
use crate::outcome::{ModuleReport, ModuleRun, ModuleTrial, SourceReport};

/// Magnitudes outside are as good as not finite, or as good as zero.
const MAGNITUDE: std::ops::RangeInclusive<f64> = 1e-4..=1e6;

/// Whether the module may be a task, with the first reason why not. `asked` is its API set.
pub fn validity(report: &ModuleReport, asked: &[String], config: &ValidatorConfig) -> Validity {
    let checks = [
        (Stage::Ast, source_fault(&report.source, asked)),
        (Stage::Runnable, run_fault(&report.run)),
        (Stage::Stable, stability_fault(&report.run, config)),
    ];
    for (stage, fault) in checks {
        if let Some(reason) = fault {
            return Validity::Invalid { stage, reason };
        }
    }
    Validity::Valid
}

/// What disqualifies the source alone; the Validator runs only what passes.
pub fn source_fault(source: &SourceReport, asked: &[String]) -> Option<String> {
    match source {
        SourceReport::NoCode => Some("the answer holds no code block".to_owned()),
        SourceReport::DoesNotParse(place) => Some(format!("does not parse: {place}")),
        SourceReport::Parsed { missing, apis, forbidden } => {
            if !missing.is_empty() {
                return Some(format!("does not define {}", missing.join(", ")));
            }
            if let Some(evidence) = forbidden.first() {
                return Some(format!("not allowed: {evidence}"));
            }
            let unused: Vec<&str> =
                asked.iter().filter(|api| !apis.contains(api)).map(String::as_str).collect();
            (!unused.is_empty()).then(|| format!("does not use {}", unused.join(", ")))
        }
    }
}

fn run_fault(run: &ModuleRun) -> Option<String> {
    match run {
        ModuleRun::NotRun => Some("was not run".to_owned()),
        ModuleRun::Failed { step, detail } => Some(format!("{step}: {detail}")),
        ModuleRun::Exceeded(limit) => Some(format!("exceeded {limit}")),
        ModuleRun::Ran { .. } => None,
    }
}

fn stability_fault(run: &ModuleRun, config: &ValidatorConfig) -> Option<String> {
    let ModuleRun::Ran { trials, depends_on_inputs, dead_parameters } = run else { return None };
    if trials.len() < config.trials.get() as usize {
        return Some(format!("{} trials instead of {}", trials.len(), config.trials.get()));
    }
    if let Some(trial) = trials.iter().find(|trial| trial.nonfinite > 0) {
        return Some(format!("{} of {} outputs are NaN or Inf", trial.nonfinite, trial.elements));
    }
    match config.rules {
        Rules::Paper => None,
        Rules::Strict => trials.iter().find_map(strict_fault).or_else(|| {
            if *depends_on_inputs == Some(false) {
                return Some("the output does not depend on the inputs".to_owned());
            }
            dead_parameters.first().map(|name| format!("parameter {name} changes nothing"))
        }),
    }
}

fn strict_fault(trial: &ModuleTrial) -> Option<String> {
    if !trial.repeatable {
        return Some("two calls on the same inputs differ".to_owned());
    }
    if trial.elements == 0 {
        return Some("the output is empty".to_owned());
    }
    if !MAGNITUDE.contains(&trial.max_abs) {
        return Some(format!("the largest output is {:e}", trial.max_abs));
    }
    (trial.elements > 1 && trial.spread == 0.0).then(|| "the output is constant".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RunConfig;

    fn trial() -> ModuleTrial {
        ModuleTrial {
            seed: 1,
            elements: 8,
            nonfinite: 0,
            max_abs: 2.0,
            spread: 1.0,
            repeatable: true,
        }
    }

    fn report(trials: Vec<ModuleTrial>) -> ModuleReport {
        ModuleReport {
            source: SourceReport::Parsed {
                missing: vec![],
                apis: vec!["torch.exp".into(), "torch.sin".into()],
                forbidden: vec![],
            },
            run: ModuleRun::Ran { trials, depends_on_inputs: Some(true), dead_parameters: vec![] },
        }
    }

    #[track_caller]
    fn check(report: &ModuleReport, rules: Rules, stage: Option<Stage>) {
        let mut config = RunConfig::parse(crate::config::EXAMPLE).unwrap().validator;
        config.rules = rules;
        config.trials = 3.try_into().unwrap();
        let found = match validity(report, &["torch.exp".to_owned()], &config) {
            Validity::Valid => None,
            Validity::Invalid { stage, .. } => Some(stage),
        };
        assert_eq!(found, stage);
    }

    #[test]
    fn stages_are_tried_in_order() {
        check(&report(vec![trial(); 3]), Rules::Paper, None);
        let mut unused = report(vec![trial(); 3]);
        unused.source = SourceReport::Parsed {
            missing: vec![],
            apis: vec!["torch.sin".into()],
            forbidden: vec![],
        };
        check(&unused, Rules::Paper, Some(Stage::Ast));
        let mut raised = report(vec![]);
        raised.run = ModuleRun::Failed { step: "forward".into(), detail: "boom".into() };
        check(&raised, Rules::Paper, Some(Stage::Runnable));
        check(
            &report(vec![ModuleTrial { nonfinite: 1, ..trial() }; 3]),
            Rules::Paper,
            Some(Stage::Stable),
        );
        check(&report(vec![trial()]), Rules::Paper, Some(Stage::Stable));
    }

    #[test]
    fn strict_refuses_what_chance_or_nothing_decides() {
        for bad in [
            ModuleTrial { repeatable: false, ..trial() },
            ModuleTrial { spread: 0.0, ..trial() },
            ModuleTrial { max_abs: 1e-9, ..trial() },
        ] {
            check(&report(vec![bad; 3]), Rules::Paper, None);
            check(&report(vec![bad; 3]), Rules::Strict, Some(Stage::Stable));
        }
    }
}
