//! Which code of a file runs when the model is called: found by mention, so that a function
//! reached through a table, a default argument or an alias is found too.

use std::collections::BTreeSet;

use tree_sitter::Node;

use super::names::Names;
use super::syntax::{Source, all};

/// How a piece of code is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Runs in forward: only what the policy lists.
    Work,
    /// Runs when the model is made: torch may be called there, but not kept for later.
    Init,
    /// The body of a Triton kernel.
    Kernel,
}

/// Code with the way it is looked at.
pub type Unit<'t> = (Node<'t>, Mode);

/// All units reached from `class`, methods `roots` in [`Mode::Work`].
pub fn reach<'t>(
    source: &'t Source<'t>,
    names: &Names<'t>,
    class: &str,
    roots: &[&str],
) -> Vec<Unit<'t>> {
    let mut search = Search {
        source,
        names,
        units: Vec::new(),
        seen: BTreeSet::new(),
        classes: BTreeSet::new(),
    };
    for root in roots {
        search.add_method(class, root, Mode::Work);
    }
    search.add_class(class, false);
    let mut next = 0;
    while let Some(unit) = search.units.get(next).copied() {
        search.follow(unit);
        next += 1;
    }
    search.units
}

struct Search<'t, 'n> {
    source: &'t Source<'t>,
    names: &'n Names<'t>,
    units: Vec<Unit<'t>>,
    seen: BTreeSet<(usize, Mode)>,
    classes: BTreeSet<(String, bool)>,
}

impl<'t> Search<'t, '_> {
    fn add(&mut self, node: Node<'t>, mode: Mode) {
        let whole = node.parent().filter(|p| p.kind() == "decorated_definition").unwrap_or(node);
        if self.seen.insert((whole.id(), mode)) {
            self.units.push((whole, mode));
        }
    }

    fn add_method(&mut self, class: &str, name: &str, mode: Mode) {
        if let Some(method) = self.names.method(class, name) {
            self.add(method, mode);
        }
    }

    /// A class that is used: a module's construction, and what is called on it; every method of
    /// any other class.
    fn add_class(&mut self, name: &str, every_method: bool) {
        if !self.classes.insert((name.to_owned(), every_method)) {
            return;
        }
        let module = self.names.is_module(name);
        self.add_method(name, "__init__", if module { Mode::Init } else { Mode::Work });
        if module && !every_method {
            return;
        }
        let Some(class) = self.names.classes.get(name) else { return };
        let methods: Vec<(&str, Node<'t>)> =
            class.methods.iter().map(|(name, node)| (*name, *node)).collect();
        for (method, node) in methods {
            if module && method != "forward" || method == "__init__" {
                continue;
            }
            self.add(node, Mode::Work);
        }
        for base in class.bases.clone() {
            if self.names.classes.contains_key(base.as_str()) {
                self.add_class(&base, every_method);
            }
        }
    }

    fn follow(&mut self, (unit, mode): Unit<'t>) {
        let owner = self.owner(unit);
        for node in all(unit) {
            match node.kind() {
                "identifier" => self.mention(self.source.text(node), mode),
                "attribute" => {
                    let name = self.source.field(node, "attribute");
                    if self.source.field(node, "object").starts_with("self")
                        && let Some(class) = owner.as_deref().filter(|_| name != "__init__")
                    {
                        self.add_method(class, name, mode);
                    }
                    // Whose method it is is not known: that of a submodule, say.
                    if mode == Mode::Work && !name.starts_with("__") {
                        self.add_methods_called(name);
                    }
                }
                _ => {}
            }
        }
    }

    fn add_methods_called(&mut self, name: &str) {
        let named = self.names.classes.values().filter_map(|class| class.methods.get(name));
        let methods: Vec<Node<'t>> = named.copied().collect();
        for method in methods {
            self.add(method, Mode::Work);
        }
    }

    fn mention(&mut self, name: &str, mode: Mode) {
        if self.names.kernels.contains(name) {
            if let Some(node) = self.names.functions.get(name) {
                self.add(*node, Mode::Kernel);
            }
            return;
        }
        // A kernel's body only names device functions; what it names is looked at as such.
        let mode = if mode == Mode::Kernel { Mode::Work } else { mode };
        if let Some(node) = self.names.functions.get(name) {
            self.add(*node, mode);
        } else if self.names.classes.contains_key(name) {
            self.add_class(name, true);
        } else if let Some(values) = self.names.values.get(name) {
            for value in values {
                self.add(*value, mode);
            }
        }
    }

    /// The class a unit stands in.
    fn owner(&self, unit: Node<'t>) -> Option<String> {
        let mut at = unit.parent();
        while let Some(node) = at {
            if node.kind() == "class_definition" {
                return Some(self.source.field(node, "name").to_owned());
            }
            at = node.parent();
        }
        None
    }
}
