//! Files whose matrices are stored rotated (Bonsai 2): the `prism.hadamard.*` keys
//! become rotations of weights.

use std::collections::BTreeSet;

use tern_formats::{Metadata, Value, shown};
use tern_graph::{Basis, Graph, HeadOrder, Random};

use crate::{Build, ModelError};

const PREFIX: &str = "prism.hadamard.";

/// The keys that there are; others are refused.
const KEYS: &[&str] = &[
    "version",
    "block_size",
    "transform",
    "axis",
    "sign_mode",
    "sign_widths",
    "sign_values",
    "weight_names",
    "inverse_weight_names",
    "gdn_v_grouped",
    "tied_output",
];

/// Matrices that may be rotated, without the layer.
const FOLDABLE: &[&str] = &[
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_gate",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
    "ffn_gate_up_exps",
    "ffn_gate_shexp",
    "ffn_up_shexp",
    "ffn_down_shexp",
    "ssm_out",
];

const TABLE: &str = "token_embd.weight";
const HEAD: &str = "output.weight";
const TRANSFORM: &str = "normalized-sylvester-walsh-hadamard";
const AXIS: &str = "input-last-dimension";

fn refuse<T>(key: &str, why: String) -> Result<T, ModelError> {
    Err(ModelError::Rotation { key: format!("{PREFIX}{key}"), why })
}

fn is_foldable(name: &str) -> bool {
    let Some(name) = name.strip_suffix(".weight") else { return false };
    let part = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    name == "output" || part.is_some_and(|(_, part)| FOLDABLE.contains(&part))
}

/// Reads the keys and registers the rotation of every weight that they name. Does nothing without them.
pub(crate) fn rotate_weights(b: &mut Build<'_>, metadata: &Metadata) -> Result<(), ModelError> {
    if let Some((key, _)) = metadata.iter().find(|(key, _)| {
        key.starts_with("prism.") && !key.strip_prefix(PREFIX).is_some_and(|k| KEYS.contains(&k))
    }) {
        return Err(ModelError::UnknownKey(key.into()));
    }
    if !metadata.iter().any(|(key, _)| key.starts_with(PREFIX)) {
        return Ok(());
    }
    let key = |name: &str| format!("{PREFIX}{name}");
    let (version, block) = (metadata.usize(&key("version"))?, metadata.usize(&key("block_size"))?);
    let tied = metadata.optional_bool(&key("tied_output"))?.unwrap_or(false);
    if !matches!((version, tied), (1, false) | (2, true)) {
        return refuse(
            "version",
            format!("is {version} with tied_output {tied}: want 1 without it or 2 with it"),
        );
    }
    for (name, want) in [("transform", TRANSFORM), ("axis", AXIS)] {
        let is = metadata.str(&key(name))?;
        if is != want {
            return refuse(name, format!("is `{}`: want `{want}`", shown(is)));
        }
    }
    let signs = signs(metadata)?;
    let names = metadata.strings(&key("weight_names"))?;
    let inverse = metadata.optional_strings(&key("inverse_weight_names"))?.unwrap_or(&[]);
    if names.is_empty() || names.iter().collect::<BTreeSet<_>>().len() != names.len() {
        return refuse("weight_names", "is empty or names a weight twice".into());
    }
    if let Some(name) = names.iter().find(|name| !is_foldable(name)) {
        return refuse("weight_names", format!("has `{}`, which cannot be rotated", shown(name)));
    }
    let table = match inverse {
        [] => false,
        [name] if name == TABLE => true,
        _ => return refuse("inverse_weight_names", format!("want `{TABLE}` or nothing")),
    };
    let own_head = b.has(HEAD);
    if tied && (own_head || !table) || !tied && table && !own_head {
        let why =
            format!("is {version}: a rotated table that is also the head needs version 2, and no `{HEAD}`");
        return refuse("version", why);
    }
    let grouped = metadata.optional_bool(&key("gdn_v_grouped"))?.unwrap_or(false);
    let rotated = names.iter().map(String::as_str).chain(table.then_some(TABLE));
    for name in rotated {
        // value heads are stored [repetition][key head], and this matrix reads [key head][repetition]
        let heads = if grouped && name.ends_with(".ssm_out.weight") {
            let keys = b.keys();
            let (inner, heads) = (keys.usize("ssm.group_count")?, keys.usize("ssm.time_step_rank")?);
            Some(HeadOrder { outer: heads.checked_div(inner).unwrap_or(0), inner })
        } else {
            None
        };
        b.graph.rotate_weight(name, &Basis { signs: signs.clone(), block, heads })?;
    }
    Ok(())
}

/// The signs of each width.
fn signs(metadata: &Metadata) -> Result<Vec<Vec<f32>>, ModelError> {
    match metadata.str(&format!("{PREFIX}sign_mode"))? {
        "identity" => return Ok(vec![]),
        "explicit" => {}
        other => return refuse("sign_mode", format!("is `{}`: want identity or explicit", shown(other))),
    }
    let widths = metadata.optional_usizes(&format!("{PREFIX}sign_widths"))?.unwrap_or_default();
    let Some(Value::Ints(values)) = metadata.get(&format!("{PREFIX}sign_values")) else {
        return refuse("sign_values", "is missing or no array of signed integers".into());
    };
    let total = widths.iter().fold(0usize, |sum, width| sum.saturating_add(*width));
    if widths.is_empty() || total != values.len() || values.iter().any(|v| *v != 1 && *v != -1) {
        let have = values.len();
        return refuse("sign_values", format!("has {have} values: want {total}, each 1 or -1"));
    }
    let mut values = values.iter().map(|v| *v as f32);
    Ok(widths.iter().map(|width| values.by_ref().take(*width).collect()).collect())
}

/// The keys of a synthetic file of this graph, with random signs.
pub(crate) fn synthetic_keys(graph: &Graph, block: usize, metadata: &mut Metadata) {
    let foldable = graph.weights.iter().filter(|w| is_foldable(&w.name) && w.cols.is_multiple_of(block));
    let names: Vec<String> = foldable.clone().map(|w| w.name.clone()).collect();
    let tied = !names.iter().any(|name| name == HEAD);
    let widths: BTreeSet<usize> = foldable
        .map(|w| w.cols)
        .chain(graph.weights.iter().filter(|w| w.name == TABLE).map(|w| w.cols))
        .collect();
    let mut random = Random::new(17);
    let values =
        (0..widths.iter().sum::<usize>()).map(|_| if random.below(2) == 0 { 1 } else { -1 }).collect();
    let mut put = |name: &str, value: Value| metadata.insert(format!("{PREFIX}{name}"), value);
    put("version", Value::Uint(if tied { 2 } else { 1 }));
    put("block_size", Value::Uint(block as u64));
    put("transform", Value::String(TRANSFORM.into()));
    put("axis", Value::String(AXIS.into()));
    put("sign_mode", Value::String("explicit".into()));
    put("sign_widths", Value::Ints(widths.iter().map(|w| *w as i64).collect()));
    put("sign_values", Value::Ints(values));
    put("weight_names", Value::Strings(names));
    put("inverse_weight_names", Value::Strings(vec![TABLE.into()]));
    put("gdn_v_grouped", Value::Bool(true));
    put("tied_output", Value::Bool(tied));
}
