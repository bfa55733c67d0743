//! The static report on a proposed module.

use std::collections::BTreeSet;

use events::outcome::SourceReport;
use tree_sitter::Node;

use super::names::Names;
use super::reach::{Mode, reach};
use super::syntax::{Source, all, children, is_field};
use super::tables;

/// What a module must define.
const REQUIRED: [&str; 3] = ["Model", "get_inputs", "get_init_inputs"];
/// What a module may import.
const IMPORTS: [&str; 5] = ["torch", "math", "typing", "__future__", "collections"];

/// Reads a proposed module: what it defines, which torch APIs its model really calls, and what it
/// must not do. Method calls on tensors (`x.sum()`) count only where `tracked` lists them as
/// `torch.Tensor.NAME`: whose method it is cannot be known from the text.
pub fn inspect_module(text: &str, tracked: &BTreeSet<String>) -> SourceReport {
    let source = match Source::parse(text.trim_start_matches('\u{feff}')) {
        Ok(source) => source,
        Err(why) => return SourceReport::DoesNotParse(why),
    };
    let names = Names::of(&source);
    let defined = |name: &str| {
        if name == "Model" { names.is_module(name) } else { names.functions.contains_key(name) }
    };
    let missing = REQUIRED.into_iter().filter(|name| !defined(name));
    let apis = apis(&source, &names, tracked);
    SourceReport::Parsed {
        missing: missing.map(str::to_owned).collect(),
        apis: apis.into_iter().collect(),
        forbidden: forbidden(&source, &names).into_iter().collect(),
    }
}

/// Full names of what the model's code calls.
fn apis(source: &Source<'_>, names: &Names<'_>, tracked: &BTreeSet<String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let units = reach(source, names, "Model", &["forward"]);
    let used = used_fields(source, &units);
    for (unit, mode) in &units {
        for node in all(*unit).into_iter().filter(|n| n.kind() == "call") {
            let Some(called) = node.child_by_field_name("function") else { continue };
            match (names.resolve(called), mode) {
                (Some(full), Mode::Work) if full.starts_with("torch.") => {
                    found.insert(full);
                }
                (Some(full), Mode::Init) if full.starts_with("torch.nn.") => {
                    let layer =
                        full.rsplit('.').next().is_some_and(|n| n.starts_with(char::is_uppercase));
                    if layer && kept_in(source, node).is_some_and(|f| used.contains(f)) {
                        found.insert(full);
                    }
                }
                (None, Mode::Work) if called.kind() == "attribute" => {
                    let full = format!("torch.Tensor.{}", source.field(called, "attribute"));
                    if tracked.contains(&full) {
                        found.insert(full);
                    }
                }
                _ => {}
            }
        }
    }
    for plain in ["torch.nn.Parameter", "torch.nn.ModuleList", "torch.nn.ModuleDict"] {
        found.remove(plain);
    }
    found
}

/// The fields of `self` that forward and what it reaches mention.
fn used_fields<'t>(source: &'t Source<'t>, units: &[(Node<'t>, Mode)]) -> BTreeSet<&'t str> {
    let work = units.iter().filter(|(_, mode)| *mode == Mode::Work);
    work.flat_map(|(unit, _)| all(*unit))
        .filter(|n| n.kind() == "attribute" && source.field(*n, "object") == "self")
        .map(|n| source.field(n, "attribute"))
        .collect()
}

/// The field of `self` that a constructor call ends up in, also inside a container.
fn kept_in<'t>(source: &'t Source<'t>, call: Node<'t>) -> Option<&'t str> {
    let mut at = call.parent();
    while let Some(node) = at {
        if node.kind() == "assignment" {
            let left = node.child_by_field_name("left")?;
            let on_self = left.kind() == "attribute" && source.field(left, "object") == "self";
            return on_self.then(|| source.field(left, "attribute"));
        }
        if node.kind() == "block" {
            return appended(source, node, call);
        }
        at = node.parent();
    }
    None
}

/// `self.layers.append(nn.Linear(...))`.
fn appended<'t>(source: &'t Source<'t>, block: Node<'t>, call: Node<'t>) -> Option<&'t str> {
    let statement =
        children(block).into_iter().find(|s| s.byte_range().contains(&call.start_byte()))?;
    all(statement)
        .into_iter()
        .find(|n| n.kind() == "attribute" && source.field(*n, "object") == "self")
        .map(|n| source.field(n, "attribute"))
}

/// Imports beyond the allowed ones, dynamic code, files, reflection, changes to torch.
fn forbidden(source: &Source<'_>, names: &Names<'_>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for node in all(source.root()) {
        match node.kind() {
            "import_statement" | "import_from_statement" => {
                let module = source.field(node, "module_name");
                for child in children(node) {
                    let plain = child.kind() == "dotted_name" || child.kind() == "aliased_import";
                    let name = if !module.is_empty() {
                        module
                    } else if child.kind() == "aliased_import" {
                        source.field(child, "name")
                    } else {
                        source.text(child)
                    };
                    let head = name.split('.').next().unwrap_or(name);
                    if plain && !IMPORTS.contains(&head) {
                        found.insert(source.evidence("import", node));
                    }
                }
            }
            "exec_statement" => {
                found.insert(source.evidence("dynamic-code", node));
            }
            "identifier" if !is_field(node, "attribute") => {
                let name = source.text(node);
                let called =
                    is_field(node, "function") && tables::listed(tables::CALLS_REFUSED, name);
                if tables::listed(tables::NAMES_REFUSED, name) || called {
                    found.insert(source.evidence("dynamic-code", node));
                }
            }
            "attribute" => forbidden_attribute(source, names, node, &mut found),
            "assignment" => {
                let left = node.child_by_field_name("left");
                if left.is_some_and(|l| l.kind() == "attribute" && names.resolve(l).is_some()) {
                    found.insert(source.evidence("patch", node));
                }
            }
            _ => {}
        }
    }
    found
}

fn forbidden_attribute(
    source: &Source<'_>,
    names: &Names<'_>,
    node: Node<'_>,
    found: &mut BTreeSet<String>,
) {
    let name = source.field(node, "attribute");
    let dunder = name.starts_with("__") && name.ends_with("__");
    if dunder && !tables::listed(tables::DUNDERS_ALLOWED, name)
        || tables::listed(tables::ATTRIBUTES_REFUSED, name)
    {
        found.insert(source.evidence("reflection", node));
    }
    let outermost = node.parent().is_none_or(|parent| parent.kind() != "attribute");
    let Some(full) = names.resolve(node).filter(|_| outermost) else { return };
    if let Some(path) = full.strip_prefix("torch.") {
        if tables::is_state_of_torch(path) {
            found.insert(source.evidence("torch-state", node));
        }
        if tables::leaves_torch(path) {
            found.insert(source.evidence("module", node));
        }
    } else if tables::is_path_refused(&full) {
        found.insert(source.evidence("module", node));
    }
}
