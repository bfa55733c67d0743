//! What certainly is a tensor, and what certainly is the candidate's own extension.

use std::collections::BTreeSet;

use tree_sitter::Node;

use super::names::Class;
use super::syntax::{all, is_field};
use super::tables;
use super::work::Inspector;

impl<'t> Inspector<'t, '_> {
    /// Local names that certainly hold tensors.
    pub(super) fn tensors(&self, unit: Node<'t>, class: Option<&Class<'t>>) -> BTreeSet<&'t str> {
        let mut found = BTreeSet::new();
        for node in all(unit) {
            match node.kind() {
                "typed_parameter" if self.source.field(node, "type").ends_with("Tensor") => {
                    found.extend(node.named_child(0).map(|n| self.source.text(n)));
                }
                "assignment" => {
                    let (Some(left), Some(right)) =
                        (node.child_by_field_name("left"), node.child_by_field_name("right"))
                    else {
                        continue;
                    };
                    if left.kind() == "identifier" && self.is_tensor(right, class, &found) {
                        found.insert(self.source.text(left));
                    }
                }
                "attribute" => {
                    let object = node.child_by_field_name("object");
                    let tells = ["contiguous", "numel", "stride", "data_ptr", "is_contiguous"];
                    if let Some(object) = object.filter(|o| o.kind() == "identifier")
                        && tells.contains(&self.source.field(node, "attribute"))
                        && self.names.resolve(object).is_none()
                    {
                        found.insert(self.source.text(object));
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// Whether an expression is certainly a tensor.
    pub(super) fn is_tensor(
        &self,
        node: Node<'t>,
        class: Option<&Class<'t>>,
        tensors: &BTreeSet<&'t str>,
    ) -> bool {
        match node.kind() {
            "identifier" => tensors.contains(self.source.text(node)),
            "parenthesized_expression" => {
                node.named_child(0).is_some_and(|n| self.is_tensor(n, class, tensors))
            }
            "call" => {
                let Some(called) = node.child_by_field_name("function") else { return false };
                if let Some(full) = self.names.resolve(called) {
                    let path = full.strip_prefix("torch.").unwrap_or_default();
                    return ["empty", "zeros", "ones", "full"].iter().any(|p| path.starts_with(p));
                }
                called.kind() == "attribute"
                    && tables::listed(tables::GIVES_TENSOR, self.source.field(called, "attribute"))
            }
            "attribute" => {
                let name = self.source.field(node, "attribute");
                let on_self = self.source.field(node, "object") == "self";
                let values = class.filter(|_| on_self).and_then(|c| c.fields.get(name));
                values.into_iter().flatten().any(|value| {
                    let maker = value.child_by_field_name("function");
                    maker.and_then(|m| self.names.resolve(m)).as_deref()
                        == Some("torch.nn.Parameter")
                })
            }
            _ => false,
        }
    }

    /// Whether an expression is certainly a list, a set or a dictionary: a name or an attribute that the
    /// unit, or else the whole file, binds to nothing else.
    pub(super) fn is_container(&self, node: Node<'t>, unit: Node<'t>) -> bool {
        let name = match node.kind() {
            "identifier" => self.source.text(node),
            "attribute" if self.source.field(node, "object") == "self" => {
                self.source.field(node, "attribute")
            }
            _ => return self.makes_container(node),
        };
        let bindings = |scope: Node<'t>| -> Vec<bool> {
            let same = all(scope).into_iter().filter(|n| n.kind() == node.kind());
            let named = same.filter(|n| match n.kind() {
                "identifier" => {
                    self.source.text(*n) == name && !is_field(*n, "attribute") && !is_keyword(*n)
                }
                _ => self.source.field(*n, "attribute") == name,
            });
            named.filter_map(|n| self.binds_container(n)).collect()
        };
        let local = if node.kind() == "identifier" { bindings(unit) } else { Vec::new() };
        let found = if local.is_empty() { bindings(self.source.root()) } else { local };
        !found.is_empty() && found.into_iter().all(|fine| fine)
    }

    /// Whether a mention binds a name to a container; none if it only reads it.
    fn binds_container(&self, node: Node<'t>) -> Option<bool> {
        const READS: &str = "\
            argument_list attribute binary_operator boolean_operator call comparison_operator \
            conditional_expression dictionary expression_list expression_statement for_in_clause \
            for_statement if_statement keyword_argument list not_operator parenthesized_expression \
            return_statement slice subscript tuple while_statement";
        let parent = node.parent()?;
        if parent.kind() == "assignment" {
            if is_field(node, "right") {
                return None;
            }
            let value = parent.child_by_field_name("right");
            return Some(is_field(node, "left") && value.is_some_and(|v| self.makes_container(v)));
        }
        let bound = is_field(node, "left") && parent.kind().starts_with("for_");
        let written = parent.parent().is_some_and(|p| p.kind() == "assignment")
            && is_field(parent, "left")
            && parent.kind() != "subscript"
            && parent.kind() != "attribute";
        (bound || written || !tables::listed(READS, parent.kind())).then_some(false)
    }

    fn makes_container(&self, node: Node<'t>) -> bool {
        match node.kind() {
            "list"
            | "set"
            | "dictionary"
            | "list_comprehension"
            | "set_comprehension"
            | "dictionary_comprehension" => true,
            "call" => node.child_by_field_name("function").is_some_and(|called| {
                let name = self.source.text(called);
                let own = self.names.functions.contains_key(name)
                    || self.names.classes.contains_key(name)
                    || self.names.values.contains_key(name);
                match self.names.resolve(called) {
                    Some(full) => full == "collections.deque" || full == "collections.defaultdict",
                    None => !own && tables::listed("list set dict sorted frozenset", name),
                }
            }),
            _ => false,
        }
    }

    /// Whether an expression is an extension built by `load_inline`, whose functions are own.
    pub(super) fn is_extension(&self, node: Node<'t>, class: Option<&Class<'t>>) -> bool {
        let builds = |node: Node<'t>| {
            all(node).into_iter().any(|n| {
                n.kind() == "identifier" && self.source.text(n) == "load_inline"
                    || n.kind() == "attribute" && self.source.field(n, "attribute") == "load_inline"
            })
        };
        let makes = |node: Node<'t>| {
            builds(node)
                || all(node).into_iter().filter(|n| n.kind() == "identifier").any(|n| {
                    let name = self.source.text(n);
                    self.names.functions.get(name).is_some_and(|f| builds(*f))
                        || self.names.values.get(name).is_some_and(|v| v.iter().any(|v| builds(*v)))
                })
        };
        if node.kind() == "attribute" && self.source.field(node, "object") == "self" {
            let field = class.and_then(|c| c.fields.get(self.source.field(node, "attribute")));
            return field.is_some_and(|values| values.iter().any(|v| makes(*v)));
        }
        if node.kind() == "identifier" {
            let name = self.source.text(node);
            let values = self.names.values.get(name);
            return values.is_some_and(|values| values.iter().any(|v| makes(*v)));
        }
        node.kind() == "call" && makes(node)
    }
}

/// Whether an identifier names an argument of a call.
fn is_keyword(node: Node<'_>) -> bool {
    node.parent().is_some_and(|p| p.kind() == "keyword_argument") && is_field(node, "name")
}
