//! User messages from templates.

/// The Proposer's message for an API set.
pub fn for_apis(template: &str, apis: &[String]) -> String {
    template.replace("{apis}", &apis.join(", "))
}

/// The Coder's message for a module.
pub fn for_module(template: &str, source: &str) -> String {
    template.replace("{module}", source.trim_end())
}
