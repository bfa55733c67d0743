//! What the names of a file stand for.

use std::collections::{BTreeMap, BTreeSet};

use tree_sitter::Node;

use super::syntax::{Source, all, children, is_field};

/// A class of the file.
#[derive(Debug)]
pub struct Class<'t> {
    /// Its definition.
    pub node: Node<'t>,
    /// Full names of its bases; own classes by their plain name.
    pub bases: Vec<String>,
    /// Its methods by name.
    pub methods: BTreeMap<&'t str, Node<'t>>,
    /// Values given to `self.NAME` anywhere in the class.
    pub fields: BTreeMap<&'t str, Vec<Node<'t>>>,
}

/// Everything the file binds.
pub struct Names<'t> {
    source: &'t Source<'t>,
    /// Local names of imported things with their full names.
    pub imports: BTreeMap<&'t str, String>,
    /// Functions of the file.
    pub functions: BTreeMap<&'t str, Node<'t>>,
    /// Classes of the file.
    pub classes: BTreeMap<&'t str, Class<'t>>,
    /// Values bound at import time.
    pub values: BTreeMap<&'t str, Vec<Node<'t>>>,
    /// Functions under `@triton.jit`.
    pub kernels: BTreeSet<&'t str>,
}

impl<'t> Names<'t> {
    /// Reads a file's bindings.
    pub fn of(source: &'t Source<'t>) -> Self {
        let mut names = Self {
            source,
            imports: BTreeMap::new(),
            functions: BTreeMap::new(),
            classes: BTreeMap::new(),
            values: BTreeMap::new(),
            kernels: BTreeSet::new(),
        };
        for node in all(source.root()) {
            names.read_import(node);
        }
        for statement in source.import_time() {
            names.read_statement(statement);
        }
        // An own definition hides an import of the same name.
        let own: Vec<&str> = names.functions.keys().chain(names.classes.keys()).copied().collect();
        names.imports.retain(|name, _| !own.contains(name));
        let kernels: Vec<&'t str> = names
            .functions
            .iter()
            .filter(|(_, node)| names.is_jitted(**node))
            .map(|(name, _)| *name)
            .collect();
        names.kernels.extend(kernels);
        names
    }

    fn read_import(&mut self, node: Node<'t>) {
        let module = match node.kind() {
            "import_statement" => "",
            "import_from_statement" => self.source.field(node, "module_name"),
            _ => return,
        };
        for child in children(node) {
            let listed = matches!(child.kind(), "dotted_name" | "aliased_import");
            if !listed || is_field(child, "module_name") {
                continue;
            }
            let (name, alias) = if child.kind() == "aliased_import" {
                (self.source.field(child, "name"), Some(self.source.field(child, "alias")))
            } else {
                (self.source.text(child), None)
            };
            if module.is_empty() {
                let head = name.split('.').next().unwrap_or(name);
                let (local, full) = alias.map_or((head, head), |alias| (alias, name));
                self.imports.insert(local, full.to_owned());
            } else {
                self.imports.insert(alias.unwrap_or(name), format!("{module}.{name}"));
            }
        }
    }

    fn read_statement(&mut self, node: Node<'t>) {
        match node.kind() {
            "function_definition" => {
                self.functions.insert(self.source.field(node, "name"), node);
            }
            "class_definition" => {
                let class = self.read_class(node);
                self.classes.insert(self.source.field(node, "name"), class);
            }
            "for_statement" | "with_statement" | "expression_statement" => {
                for inner in all(node) {
                    self.read_binding(inner);
                }
            }
            _ => {}
        }
    }

    /// Names bound by an assignment, a loop or a `with` at import time.
    fn read_binding(&mut self, node: Node<'t>) {
        let (left, right) = match node.kind() {
            "assignment" | "augmented_assignment" | "for_statement" => {
                (node.child_by_field_name("left"), node.child_by_field_name("right"))
            }
            "named_expression" => {
                (node.child_by_field_name("name"), node.child_by_field_name("value"))
            }
            _ => return,
        };
        let (Some(left), Some(right)) = (left, right) else { return };
        for target in all(left).into_iter().filter(|n| n.kind() == "identifier") {
            self.values.entry(self.source.text(target)).or_default().push(right);
        }
    }

    fn read_class(&self, node: Node<'t>) -> Class<'t> {
        let mut class =
            Class { node, bases: Vec::new(), methods: BTreeMap::new(), fields: BTreeMap::new() };
        if let Some(bases) = node.child_by_field_name("superclasses") {
            class.bases = children(bases)
                .into_iter()
                .map(|b| self.resolve(b).unwrap_or_else(|| self.source.text(b).to_owned()))
                .collect();
        }
        let Some(body) = node.child_by_field_name("body") else { return class };
        for member in children(body) {
            let member = definition(member);
            if member.kind() == "function_definition" {
                class.methods.insert(self.source.field(member, "name"), member);
            }
        }
        for inner in all(body) {
            if inner.kind() != "assignment" {
                continue;
            }
            let (Some(left), Some(right)) =
                (inner.child_by_field_name("left"), inner.child_by_field_name("right"))
            else {
                continue;
            };
            let targets = all(left).into_iter().filter(|n| n.kind() == "attribute");
            for target in targets.filter(|n| self.source.field(*n, "object") == "self") {
                let name = self.source.field(target, "attribute");
                class.fields.entry(name).or_default().push(right);
            }
        }
        class
    }

    /// The full name of an expression that stands for something imported.
    pub fn resolve(&self, node: Node<'_>) -> Option<String> {
        self.resolve_within(node, 8)
    }

    fn resolve_within(&self, node: Node<'_>, steps: usize) -> Option<String> {
        let mut path = Vec::new();
        let mut at = node;
        while at.kind() == "attribute" {
            path.push(self.source.field(at, "attribute"));
            at = at.child_by_field_name("object")?;
        }
        if at.kind() != "identifier" {
            return None;
        }
        let name = self.source.text(at);
        let mut full = match self.imports.get(name) {
            Some(full) => full.clone(),
            // A second name for something imported: `rt = torch`.
            None => match self.values.get(name).map(Vec::as_slice) {
                Some([value]) if steps > 0 => self.resolve_within(*value, steps - 1)?,
                _ => return None,
            },
        };
        for part in path.iter().rev() {
            full.push('.');
            full.push_str(part);
        }
        Some(full)
    }

    fn is_jitted(&self, function: Node<'_>) -> bool {
        let Some(parent) = function.parent().filter(|p| p.kind() == "decorated_definition") else {
            return false;
        };
        children(parent).into_iter().filter(|c| c.kind() == "decorator").any(|decorator| {
            let Some(expression) = decorator.named_child(0) else { return false };
            let called = expression.child_by_field_name("function").unwrap_or(expression);
            self.resolve(called).is_some_and(|n| n == "triton.jit" || n == "triton.runtime.jit.jit")
        })
    }

    /// Whether a class is an `nn.Module`, through own bases too.
    pub fn is_module(&self, name: &str) -> bool {
        let mut open = vec![name.to_owned()];
        let mut seen = BTreeSet::new();
        while let Some(name) = open.pop() {
            if name == "torch.nn.Module" || name.starts_with("torch.nn.") {
                return true;
            }
            if let Some(class) =
                self.classes.get(name.as_str()).filter(|_| seen.insert(name.clone()))
            {
                open.extend(class.bases.iter().cloned());
            }
        }
        false
    }

    /// A method of a class or of its own bases.
    pub fn method(&self, class: &str, name: &str) -> Option<Node<'t>> {
        let mut open = vec![class.to_owned()];
        let mut seen = BTreeSet::new();
        while let Some(class) = open.pop() {
            let Some(found) = self.classes.get(class.as_str()) else { continue };
            if let Some(method) = found.methods.get(name) {
                return Some(*method);
            }
            if seen.insert(class) {
                open.extend(found.bases.iter().rev().cloned());
            }
        }
        None
    }
}

/// The definition under its decorators.
fn definition(node: Node<'_>) -> Node<'_> {
    if node.kind() == "decorated_definition" {
        return node.child_by_field_name("definition").unwrap_or(node);
    }
    node
}
