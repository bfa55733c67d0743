//! What no part of a candidate's file may do, reached or not.

use tree_sitter::Node;

use super::names::Names;
use super::syntax::{Source, all, children, is_field};
use super::tables;

/// The first forbidden thing of a whole file, as `rule: evidence`. Code that only runs when the
/// file is the main program is not looked at: it never is.
pub fn check<'t>(source: &'t Source<'t>, names: &Names<'t>) -> Option<String> {
    let mut skipped: Vec<std::ops::Range<usize>> = Vec::new();
    for node in all(source.root()) {
        if source.is_main_guard(node) {
            skipped.push(node.byte_range());
        }
        if skipped.iter().any(|range| range.contains(&node.start_byte())) {
            continue;
        }
        if let Some(found) = check_node(source, names, node) {
            return Some(found);
        }
    }
    names.classes.keys().find_map(|name| check_class(source, names, name))
}

fn check_node<'t>(source: &'t Source<'t>, names: &Names<'t>, node: Node<'t>) -> Option<String> {
    let refuse = |rule: &str| Some(source.evidence(rule, node));
    match node.kind() {
        "import_statement" | "import_from_statement" => check_import(source, node),
        "exec_statement" => refuse("dynamic-code"),
        // Patterns of classes read attributes by name, captures are other names for what is matched.
        "case_clause" => captures(source, node).then(|| source.evidence("pattern", node)),
        "identifier" => {
            let name = source.text(node);
            if !name.is_ascii() {
                return refuse("identifier");
            }
            let part = node.parent().is_some_and(|p| p.kind() == "attribute")
                && is_field(node, "attribute");
            if !part && tables::listed(tables::NAMES_REFUSED, name) {
                return refuse("dynamic-code");
            }
            if name == "__name__" && !part && !is_read(node) {
                return refuse("main-guard");
            }
            check_module_name(source, names, node)
        }
        "call" => {
            let called = node.child_by_field_name("function")?;
            let name = source.text(called);
            let wraps = names.resolve(called).is_some_and(|full| full == "functools.wraps");
            let arguments = node.child_by_field_name("arguments");
            if wraps && arguments.is_some_and(|list| list.named_child_count() != 1) {
                // With more it copies any attributes of anything.
                return refuse("reflection");
            }
            let own = names.functions.contains_key(name);
            (called.kind() == "identifier" && tables::listed(tables::CALLS_REFUSED, name) && !own)
                .then(|| source.evidence("dynamic-code", node))
        }
        "attribute" => {
            let name = source.field(node, "attribute");
            let dunder = name.starts_with("__") && name.ends_with("__");
            if dunder && !tables::listed(tables::DUNDERS_ALLOWED, name) {
                return refuse("reflection");
            }
            if tables::listed(tables::ATTRIBUTES_REFUSED, name) {
                return refuse("reflection");
            }
            check_module_name(source, names, node)
        }
        "assignment" | "augmented_assignment" | "delete_statement" | "for_statement" => {
            check_target(source, names, node)
        }
        _ => None,
    }
}

/// Whether the module's name is only read: another would make the main program's code run.
fn is_read(node: Node<'_>) -> bool {
    const READS: [&str; 6] = [
        "argument_list",
        "binary_operator",
        "comparison_operator",
        "interpolation",
        "parenthesized_expression",
        "print_statement",
    ];
    let keyword = |parent: Node<'_>| parent.kind() == "keyword_argument" && is_field(node, "value");
    node.parent().is_some_and(|parent| READS.contains(&parent.kind()) || keyword(parent))
}

/// Whether a case of `match` does more than compare with values.
fn captures(source: &Source<'_>, clause: Node<'_>) -> bool {
    let patterns = all(clause).into_iter().filter(|node| {
        let body = clause.child_by_field_name("consequence");
        body.is_none_or(|body| !body.byte_range().contains(&node.start_byte()))
    });
    patterns.into_iter().any(|node| match node.kind() {
        "class_pattern" | "as_pattern" | "splat_pattern" | "keyword_pattern" => true,
        "case_pattern" => {
            let text = source.text(node);
            text != "_"
                && text.chars().all(|c| c.is_alphanumeric() || c == '_')
                && text.starts_with(|c: char| c.is_alphabetic() || c == '_')
                && !matches!(text, "None" | "True" | "False")
        }
        _ => false,
    })
}

/// Whether a module that is used as a value gets no more than a second name at the top of the file,
/// which is followed.
fn is_followed(node: Node<'_>) -> bool {
    let Some(assignment) = node.parent().filter(|p| p.kind() == "assignment") else { return false };
    let plain = assignment.child_by_field_name("left").is_some_and(|l| l.kind() == "identifier");
    let top = assignment.parent().and_then(|s| s.parent()).is_some_and(|p| p.kind() == "module");
    plain && top && is_field(node, "right")
}

fn check_import(source: &Source<'_>, node: Node<'_>) -> Option<String> {
    if children(node).iter().any(|c| c.kind() == "wildcard_import") {
        return Some(source.evidence("wildcard-import", node));
    }
    let module = source.field(node, "module_name");
    for child in children(node) {
        let (name, alias) = match child.kind() {
            "aliased_import" => (source.field(child, "name"), Some(source.field(child, "alias"))),
            "dotted_name" => (source.text(child), None),
            _ => continue,
        };
        let full = match module {
            "" => name.to_owned(),
            module if module == name => module.to_owned(),
            module => format!("{module}.{name}"),
        };
        let head = name.split('.').next().unwrap_or(name);
        let state = full.strip_prefix("torch.").is_some_and(tables::is_state_of_torch);
        if !state && !tables::is_import_refused(&full) {
            continue;
        }
        // The worker gives an empty module for it.
        let harmless = module.is_empty()
            && !matches!(head, "torch" | "triton")
            && is_unused(source, alias.unwrap_or(head));
        if !harmless {
            return Some(source.evidence("import", node));
        }
    }
    None
}

/// Whether a name occurs nowhere but in imports and in code that only the main program runs.
fn is_unused(source: &Source<'_>, name: &str) -> bool {
    all(source.root()).into_iter().filter(|n| n.kind() == "identifier").all(|n| {
        let counts = |n: &Node<'_>| {
            matches!(n.kind(), "import_statement" | "import_from_statement")
                || source.is_main_guard(*n)
        };
        source.text(n) != name || std::iter::successors(Some(n), |n| n.parent()).any(|n| counts(&n))
    })
}

/// Parts of torch that change the process, and of `os` that leave it.
fn check_module_name<'t>(
    source: &'t Source<'t>,
    names: &Names<'t>,
    node: Node<'t>,
) -> Option<String> {
    let parent = node.parent()?;
    if matches!(parent.kind(), "dotted_name" | "aliased_import" | "keyword_argument")
        || parent.kind() == "attribute" && is_field(node, "attribute")
    {
        return None;
    }
    let full = names.resolve(node)?;
    if let Some(path) = full.strip_prefix("torch.") {
        if tables::is_state_of_torch(path) {
            return Some(source.evidence("torch-state", node));
        }
        if path.starts_with("Tensor.") {
            return Some(source.evidence("unbound-method", node));
        }
    }
    let outermost = parent.kind() != "attribute";
    if outermost && tables::is_whole_module(&full) && !is_followed(node) {
        return Some(source.evidence("module-as-value", node));
    }
    if let Some(path) = full.strip_prefix("torch.") {
        return (outermost && tables::leaves_torch(path)).then(|| source.evidence("module", node));
    }
    if outermost && full != "torch" && tables::is_path_refused(&full) {
        return Some(source.evidence("module", node));
    }
    let path = full.strip_prefix("os").filter(|rest| rest.is_empty() || rest.starts_with('.'))?;
    let fine = path.starts_with(".environ") || path == ".getenv" || path == ".cpu_count";
    (outermost && !fine).then(|| source.evidence("operating-system", node))
}

/// Assignments to what belongs to an imported module, or over a kernel's name.
fn check_target<'t>(source: &'t Source<'t>, names: &Names<'t>, node: Node<'t>) -> Option<String> {
    let left = node.child_by_field_name("left").or_else(|| node.named_child(0))?;
    for target in all(left) {
        let refused = match target.kind() {
            "attribute" => names.resolve(target).is_some_and(|n| !n.starts_with("os.environ")),
            "subscript" => {
                let value = target.child_by_field_name("value");
                let full = value.and_then(|v| names.resolve(v));
                full.is_some_and(|n| !n.starts_with("os.environ"))
            }
            "identifier" => {
                let free = target.parent().is_none_or(|p| p.kind() != "attribute");
                free && names.kernels.contains(source.text(target))
            }
            _ => false,
        };
        if refused {
            return Some(source.evidence("patch", node));
        }
    }
    None
}

/// Classes that pose as tensors, and modules that change how they are called or loaded.
fn check_class<'t>(source: &'t Source<'t>, names: &Names<'t>, name: &str) -> Option<String> {
    let class = names.classes.get(name)?;
    let refuse = |rule: &str| Some(source.evidence(rule, class.node));
    let odd = |base: &String| {
        base == "torch.Tensor" || base == "torch.nn.Parameter" || base.ends_with("Mode")
    };
    if class.bases.iter().any(odd) {
        return refuse("tensor-subclass");
    }
    for method in class.methods.keys() {
        let poses =
            method.starts_with("__torch_") || matches!(*method, "__getitem__" | "__getattr__");
        if poses || names.is_module(name) && tables::listed(tables::METHODS_REFUSED, method) {
            return refuse("replaced-method");
        }
    }
    let body = class.node.child_by_field_name("body")?;
    for statement in children(body).into_iter().filter(|s| s.kind() == "expression_statement") {
        let assigned = statement.named_child(0).and_then(|a| a.child_by_field_name("left"));
        let name = assigned.map_or("", |left| source.text(left));
        if name == "forward" || tables::listed(tables::METHODS_REFUSED, name) {
            return refuse("replaced-method");
        }
    }
    None
}
