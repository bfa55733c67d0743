//! What code that runs in forward, in construction or in a kernel may do.

use std::collections::BTreeSet;

use tree_sitter::Node;

use super::names::{Class, Names};
use super::reach::{Mode, Unit};
use super::syntax::{Source, all, is_field};
use super::tables;

/// Looks through reached code.
pub struct Inspector<'t, 'n> {
    /// The file.
    pub source: &'t Source<'t>,
    /// Its names.
    pub names: &'n Names<'t>,
}

impl<'t> Inspector<'t, '_> {
    /// The first thing that a unit must not do, as `rule: evidence`.
    pub fn check(&self, (unit, mode): Unit<'t>) -> Option<String> {
        let class = self.class_of(unit);
        let tensors = if mode == Mode::Work { self.tensors(unit, class) } else { BTreeSet::new() };
        all(unit).into_iter().find_map(|node| {
            let inner = mode == Mode::Init && self.is_kept_function(node, unit);
            let mode = if inner { Mode::Work } else { mode };
            self.check_name(node, mode).or_else(|| match mode {
                Mode::Work => self.check_work(node, unit, class, &tensors),
                Mode::Kernel => self.check_kernel(node),
                Mode::Init => None,
            })
        })
    }

    /// What Triton's compiler would not compile but its interpreter would run, as Python.
    fn check_kernel(&self, node: Node<'t>) -> Option<String> {
        let decorates =
            std::iter::successors(Some(node), |n| n.parent()).any(|n| n.kind() == "decorator");
        if decorates {
            return None;
        }
        if tables::listed(tables::KERNEL_SYNTAX_REFUSED, node.kind()) {
            return Some(self.source.evidence("kernel-python", node));
        }
        if node.kind() != "attribute" || self.names.resolve(node).is_some() {
            return None;
        }
        let name = self.source.field(node, "attribute");
        let known = tables::listed(tables::KERNEL_ATTRIBUTES, name);
        (!known).then(|| self.source.evidence("kernel-python", node))
    }

    /// A function made during construction may be kept and called in forward.
    fn is_kept_function(&self, node: Node<'t>, unit: Node<'t>) -> bool {
        let mut at = Some(node);
        while let Some(current) = at.filter(|n| *n != unit) {
            let outer = current.parent() == Some(unit) || is_field(current, "definition");
            if current.kind() == "lambda" || current.kind() == "function_definition" && !outer {
                return true;
            }
            at = current.parent();
        }
        false
    }

    /// Names that stand for something of torch or of another module.
    fn check_name(&self, node: Node<'t>, mode: Mode) -> Option<String> {
        let name = self.maximal(node)?;
        if name == "time" || name.starts_with("time.") {
            return (mode == Mode::Work).then(|| self.source.evidence("clock", node));
        }
        if let Some(rest) = name.strip_prefix("operator.") {
            let plain = ["mul", "add", "itemgetter", "attrgetter"].contains(&rest);
            return (!plain).then(|| self.source.evidence("operator", node));
        }
        if name == "contextlib.suppress" {
            return Some(self.source.evidence("fallback", node));
        }
        let path = match name.strip_prefix("torch") {
            Some("") => return Some(self.source.evidence("torch-as-value", node)),
            Some(rest) => rest.strip_prefix('.')?,
            None => return None,
        };
        let is_called = is_field(node, "function");
        let is_class = path.rsplit('.').next().is_some_and(|n| n.starts_with(char::is_uppercase));
        let fine = match mode {
            Mode::Work => tables::is_plain_torch(path),
            Mode::Init => is_called || is_class || tables::is_plain_torch(path),
            Mode::Kernel => tables::is_plain_torch(path) && !is_called,
        };
        (!fine).then(|| self.source.evidence("torch-call", node))
    }

    /// The full name of a dotted expression, at its outermost node only.
    fn maximal(&self, node: Node<'t>) -> Option<String> {
        let parent = node.parent()?;
        let inside = parent.kind() == "attribute"
            || parent.kind() == "keyword_argument" && is_field(node, "name")
            || matches!(parent.kind(), "dotted_name" | "aliased_import");
        if inside || !matches!(node.kind(), "identifier" | "attribute") {
            return None;
        }
        self.names.resolve(node)
    }

    fn check_work(
        &self,
        node: Node<'t>,
        unit: Node<'t>,
        class: Option<&Class<'t>>,
        tensors: &BTreeSet<&'t str>,
    ) -> Option<String> {
        let refuse = |rule: &str| Some(self.source.evidence(rule, node));
        match node.kind() {
            "attribute" => self.check_attribute(node, unit, class),
            "call" => self.check_call(node, class),
            "binary_operator"
            | "comparison_operator"
            | "unary_operator"
            | "augmented_assignment" => {
                let operator = self.operator(node);
                if operator == "@" || operator == "@=" {
                    return refuse("operator");
                }
                let compared = node.kind() == "comparison_operator";
                let exempt = compared && !["<", ">", "<=", ">="].contains(&operator);
                let operands = super::syntax::children(node);
                let tensor = operands.iter().any(|n| self.is_tensor(*n, class, tensors));
                (tensor && !exempt).then(|| self.source.evidence("operator", node))
            }
            "assignment" => {
                let left = node.child_by_field_name("left")?;
                let value = left.child_by_field_name("value")?;
                let written = left.kind() == "subscript" && self.is_tensor(value, class, tensors);
                written.then(|| self.source.evidence("tensor-write", node))
            }
            "except_clause" => self.check_handler(node),
            "return_statement" => self.check_return(node, class),
            _ => None,
        }
    }

    fn operator(&self, node: Node<'t>) -> &'t str {
        let field = self.source.field(node, "operator");
        if field.is_empty() { self.source.field(node, "operators") } else { field }
    }

    fn check_attribute(
        &self,
        node: Node<'t>,
        unit: Node<'t>,
        class: Option<&Class<'t>>,
    ) -> Option<String> {
        if self.names.resolve(node).is_some() {
            return None;
        }
        let object = node.child_by_field_name("object")?;
        let name = self.source.field(node, "attribute");
        let called = is_field(node, "function");
        let on_self = self.source.text(object) == "self";
        if tables::listed(tables::MODULE_WALKS, name) {
            return Some(self.source.evidence("module-walk", node));
        }
        if name == "data_ptr" && self.is_remembered(node) {
            return Some(self.source.evidence("address", node));
        }
        let own =
            class.is_some_and(|c| c.methods.contains_key(name) || c.fields.contains_key(name));
        let of_device =
            name == "index" && !called && self.source.field(object, "attribute") == "device";
        if tables::computes(name)
            && !(on_self && (own || !called))
            && !of_device
            && !self.is_extension(object, class)
            && !self.is_container(object, unit)
        {
            return Some(self.source.evidence("tensor-method", node));
        }
        None
    }

    /// An address that is compared, kept or used as a key; arguments and alignment are fine.
    fn is_remembered(&self, node: Node<'t>) -> bool {
        let mut at = node.parent().and_then(|call| call.parent());
        while let Some(parent) = at {
            match parent.kind() {
                "binary_operator" | "argument_list" | "keyword_argument" => return false,
                "subscript" | "tuple" | "comparison_operator" | "assignment" | "pair" => {
                    return true;
                }
                "block" | "function_definition" => return false,
                _ => at = parent.parent(),
            }
        }
        false
    }

    /// Calls of modules whose class is torch's.
    fn check_call(&self, node: Node<'t>, class: Option<&Class<'t>>) -> Option<String> {
        let mut called = node.child_by_field_name("function")?;
        if called.kind() == "attribute" && self.source.field(called, "attribute") == "forward" {
            called = called.child_by_field_name("object")?;
            if self.source.text(called).starts_with("super(") {
                return Some(self.source.evidence("inherited-forward", node));
            }
        }
        if called.kind() != "attribute" || self.source.field(called, "object") != "self" {
            return None;
        }
        let field = class?.fields.get(self.source.field(called, "attribute"))?;
        let foreign = field.iter().any(|value| {
            let maker = value.child_by_field_name("function");
            maker
                .and_then(|m| self.names.resolve(m))
                .is_some_and(|name| name.starts_with("torch.nn.") && name != "torch.nn.Parameter")
        });
        foreign.then(|| self.source.evidence("torch-module", node))
    }

    /// A handler that computes the answer: it returns a value or calls own functions.
    fn check_handler(&self, node: Node<'t>) -> Option<String> {
        let computes = all(node).into_iter().any(|inner| match inner.kind() {
            "return_statement" => inner.named_child(0).is_some_and(|v| v.kind() != "none"),
            "identifier" => {
                let name = self.source.text(inner);
                self.names.functions.contains_key(name)
            }
            _ => false,
        });
        computes.then(|| self.source.evidence("fallback", node))
    }

    /// A result that an earlier call left behind.
    fn check_return(&self, node: Node<'t>, class: Option<&Class<'t>>) -> Option<String> {
        let class = class?;
        let forward = class.methods.get("forward")?;
        let kept: BTreeSet<&str> = all(*forward)
            .into_iter()
            .filter(|n| n.kind() == "assignment")
            .filter_map(|n| n.child_by_field_name("left"))
            .flat_map(all)
            .filter(|n| n.kind() == "attribute" && self.source.field(*n, "object") == "self")
            .map(|n| self.source.field(n, "attribute"))
            .collect();
        let value = node.named_child(0)?;
        let stale = all(value).into_iter().any(|n| {
            let direct = n.parent() == Some(node)
                || n.parent().is_some_and(|p| p.kind() == "subscript" && p.parent() == Some(node));
            direct
                && n.kind() == "attribute"
                && self.source.field(n, "object") == "self"
                && kept.contains(self.source.field(n, "attribute"))
        });
        stale.then(|| self.source.evidence("kept-result", node))
    }

    fn class_of(&self, unit: Node<'t>) -> Option<&Class<'t>> {
        let mut at = Some(unit);
        while let Some(node) = at {
            if node.kind() == "class_definition" {
                return self.names.classes.get(self.source.field(node, "name"));
            }
            at = node.parent();
        }
        None
    }
}
