//! Options on command lines, as far as they name models.

use super::process::base;
use serde_json::Value;

/// The values of all options with one of these names, as `--name value` or `--name=value`; with
/// `many` all words up to the next option.
pub(super) fn values<'a>(cmdline: &'a [String], names: &[&str], many: bool) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(arg) = cmdline.get(at) {
        at += 1;
        if let Some((name, value)) = arg.split_once('=')
            && names.contains(&name)
        {
            found.push(value);
        } else if names.contains(&arg.as_str()) {
            while let Some(value) = cmdline.get(at).filter(|value| !value.starts_with('-')) {
                found.push(value.as_str());
                at += 1;
                if !many {
                    break;
                }
            }
        }
    }
    found
}

/// The word right after `command`, unless it is an option.
pub(super) fn operand<'a>(cmdline: &'a [String], command: &str) -> Option<&'a str> {
    let at = cmdline.iter().position(|arg| base(arg) == command)?;
    cmdline
        .get(at + 1)
        .map(String::as_str)
        .filter(|word| !word.starts_with('-'))
}

/// Names of adapters: `name=path` or a JSON object with a `name` or `lora_name`.
pub(super) fn adapters(values: &[&str]) -> Vec<String> {
    let name = |value: &&str| {
        if value.starts_with('{') {
            let object: Value = serde_json::from_str(value).ok()?;
            let name = object.get("name").or_else(|| object.get("lora_name"))?;
            return name.as_str().map(str::to_owned);
        }
        value.split_once('=').map(|(name, _)| name.to_owned())
    };
    values.iter().filter_map(name).collect()
}

/// `served` if it is given, else the last of `models`, then the adapters.
pub(super) fn served_or_model(
    served: Vec<&str>,
    models: Vec<&str>,
    adapters: Vec<String>,
) -> Vec<String> {
    let named = if served.is_empty() {
        models.last().copied().into_iter().collect()
    } else {
        served
    };
    named
        .into_iter()
        .map(str::to_owned)
        .chain(adapters)
        .collect()
}
