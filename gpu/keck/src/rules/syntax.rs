//! Parsed Python source and walks over it that cannot overflow the stack.

use tree_sitter::{Node, Parser, Tree};

/// Longest source that is looked at, in bytes.
pub const SOURCE_MAX: usize = 64 * 1024;
/// Deepest nesting that is looked at; Python itself gives up earlier than a thousand.
const DEPTH_MAX: usize = 400;

/// Source text with its syntax tree.
pub struct Source<'a> {
    text: &'a str,
    tree: Tree,
}

impl<'a> Source<'a> {
    /// Parses; the error says where and what.
    pub fn parse(text: &'a str) -> Result<Self, String> {
        if text.len() > SOURCE_MAX {
            return Err(format!("longer than {SOURCE_MAX} bytes"));
        }
        if let Some(cookie) = foreign_encoding(text) {
            return Err(format!("encoding declaration: {cookie}"));
        }
        let mut parser = Parser::new();
        parser
            .set_language(&tree_sitter_python::LANGUAGE.into())
            .map_err(|e| format!("grammar: {e}"))?;
        let tree = parser.parse(text, None).ok_or("the parser gave up")?;
        let source = Self { text, tree };
        let mut deepest = 0;
        let mut broken = None;
        visit(source.root(), |node, depth| {
            deepest = deepest.max(depth);
            if broken.is_none() && (node.is_error() || node.is_missing()) {
                broken = Some(source.line(node));
            }
        });
        match broken {
            Some(line) => Err(format!("line {line}: invalid syntax")),
            None if deepest > DEPTH_MAX => Err(format!("nested {deepest} levels deep")),
            None => Ok(source),
        }
    }

    /// The whole file.
    pub fn root(&self) -> Node<'_> {
        self.tree.root_node()
    }

    /// The text of a node.
    pub fn text(&self, node: Node<'_>) -> &'a str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }

    /// The text of a node's field, empty if it has none.
    pub fn field(&self, node: Node<'_>, name: &str) -> &'a str {
        node.child_by_field_name(name).map_or("", |n| self.text(n))
    }

    /// Line number of a node, from 1.
    pub fn line(&self, node: Node<'_>) -> usize {
        node.start_position().row + 1
    }

    /// A line of evidence: `rule: what (line N)`.
    pub fn evidence(&self, rule: &str, node: Node<'_>) -> String {
        let text = self.text(node).lines().next().unwrap_or_default();
        let short: String = text.chars().take(80).collect();
        format!("{rule}: {short} (line {})", self.line(node))
    }

    /// Statements that run when the file is imported: not the bodies of functions and classes,
    /// not what only runs when the file is the main program.
    pub fn import_time(&self) -> Vec<Node<'_>> {
        let mut found = Vec::new();
        let mut open = vec![self.root()];
        while let Some(node) = open.pop() {
            if self.is_main_guard(node) {
                continue;
            }
            if is_statement(node) {
                found.push(node);
            }
            if matches!(node.kind(), "function_definition" | "class_definition") {
                continue;
            }
            let mut cursor = node.walk();
            let blocks = node.named_children(&mut cursor).filter(|c| {
                is_statement(*c)
                    || matches!(
                        c.kind(),
                        "block"
                            | "else_clause"
                            | "elif_clause"
                            | "except_clause"
                            | "finally_clause"
                    )
            });
            open.extend(blocks);
        }
        found.reverse();
        found
    }

    /// `if __name__ == "__main__":`
    pub fn is_main_guard(&self, node: Node<'_>) -> bool {
        let condition: String = self
            .field(node, "condition")
            .split_whitespace()
            .collect::<String>()
            .replace('\'', "\"");
        let main = "\"__main__\"";
        node.kind() == "if_statement"
            && (condition == format!("__name__=={main}")
                || condition == format!("{main}==__name__"))
            && node.child_by_field_name("alternative").is_none()
    }
}

fn is_statement(node: Node<'_>) -> bool {
    let kind = node.kind();
    kind.ends_with("_statement") || kind.ends_with("_definition")
}

/// An encoding declaration other than UTF-8 in the first two lines: the text that runs would be
/// another one than the text that was read.
fn foreign_encoding(text: &str) -> Option<&str> {
    text.lines().take(2).filter(|line| line.trim_start().starts_with('#')).find(|line| {
        let after = line.split_once("coding").map(|(_, rest)| rest.trim_start());
        let name = after.and_then(|rest| rest.strip_prefix([':', '=']));
        name.is_some_and(|n| {
            let n = n.trim_start().to_ascii_lowercase();
            !(n.starts_with("utf-8") || n.starts_with("utf8"))
        })
    })
}

/// Calls `see` with every node below and including `node`, and its depth, in order of the text.
pub fn visit<'t>(node: Node<'t>, mut see: impl FnMut(Node<'t>, usize)) {
    let mut cursor = node.walk();
    let mut depth = 0;
    loop {
        see(cursor.node(), depth);
        if cursor.goto_first_child() {
            depth += 1;
            continue;
        }
        while !cursor.goto_next_sibling() {
            if depth == 0 || !cursor.goto_parent() {
                return;
            }
            depth -= 1;
        }
        if depth == 0 {
            return;
        }
    }
}

/// All nodes below and including `node`.
pub fn all(node: Node<'_>) -> Vec<Node<'_>> {
    let mut found = Vec::new();
    visit(node, |n, _| found.push(n));
    found
}

/// Whether `node` is the given field of its parent.
pub fn is_field(node: Node<'_>, name: &str) -> bool {
    node.parent().and_then(|p| p.child_by_field_name(name)) == Some(node)
}

/// The named children.
pub fn children(node: Node<'_>) -> Vec<Node<'_>> {
    let mut cursor = node.walk();
    node.named_children(&mut cursor).collect()
}
