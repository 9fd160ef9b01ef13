//! `tern show`: a model in short. `tern inspect` has all of its metadata and tensors.

use std::io::Write;

use serde_json::{Map, Value, json};
use tern::formats::{Access, Checkpoint, escaped, shown};
use tern::graph::Parameter;
use tern::models::Model;
use tern::text::{ChatTemplate, Tokenizer};
use tern::{OpenedTower, PartialSampling, inspect_checkpoint, units};

use super::inspect::formats;
use crate::args::ShowArgs;
use crate::error::{CliError, CliResult};
use crate::load::Bars;

pub(crate) fn show(args: &ShowArgs) -> CliResult<()> {
    let checkpoint = inspect_checkpoint(&args.model, &Bars::default())?;
    let summary = Summary::of(&args.model, &checkpoint);
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", summary.to_json())?;
    } else {
        write!(out, "{}", summary.to_text())?;
    }
    Ok(())
}

/// What is shown of a model.
struct Summary {
    /// Its name in the file.
    name: Option<String>,
    architecture: String,
    weights: u64,
    bytes: u64,
    /// Formats of weights, the one with the most bytes first, with their share of the bytes.
    formats: Vec<(&'static str, f64)>,
    /// The trained context in tokens, of a model that can be run.
    context: Option<usize>,
    width: Option<usize>,
    layers: Option<usize>,
    vocabulary: Option<usize>,
    /// What the chat template can express; none without a template.
    template: Option<Vec<&'static str>>,
    /// The kind of the tower of its images, if it sees.
    images: Option<&'static str>,
    /// What the file recommends.
    sampling: PartialSampling,
    licence: Option<String>,
    /// Why it cannot be run.
    why_not: Option<String>,
}

impl Summary {
    fn of(name: &str, checkpoint: &Checkpoint) -> Summary {
        let metadata = &checkpoint.metadata;
        let text = |key: &str| metadata.optional_str(key).ok().flatten().map(str::to_string);
        let model =
            Model::open(checkpoint, None).map(|opened| opened.0).map_err(|e| CliError::from(e).to_string());
        let all = formats(checkpoint);
        let bytes: u64 = all.iter().map(|format| format.bytes).sum();
        let config = model.as_ref().ok().map(|model| &model.config);
        Summary {
            name: text("general.name"),
            architecture: text("general.architecture").unwrap_or_else(|| "unknown".into()),
            weights: all.iter().map(|format| format.weights).sum(),
            bytes: checkpoint.files.iter().map(|file| file.bytes).sum(),
            formats: all.iter().map(|f| (f.name, f.bytes as f64 / bytes.max(1) as f64)).collect(),
            context: config.map(|config| config.context_trained),
            width: config.map(|config| config.width),
            layers: config.map(|config| config.layers),
            vocabulary: config.map(|config| config.vocab),
            template: abilities(checkpoint),
            images: tower_of(checkpoint),
            sampling: PartialSampling::of_model(name, metadata).unwrap_or_default(),
            licence: text("general.license"),
            why_not: model.err(),
        }
    }

    /// The sampling parameters that apply without flags, and whether the file recommends each.
    fn parameters(&self) -> Vec<(&'static str, f64, bool)> {
        let all = self.sampling.or(PartialSampling::USUAL);
        let row = |(parameter, value): (&'static Parameter, Option<f64>)| {
            Some((parameter.name, value?, self.sampling.get(parameter).is_some()))
        };
        all.rows().filter_map(row).collect()
    }

    fn to_text(&self) -> String {
        let formats: Vec<String> =
            self.formats.iter().map(|(name, share)| format!("{name} ({:.0} %)", 100.0 * share)).collect();
        let count = |n: Option<usize>| n.map(|n| units::thousands(n as u64));
        let tokens = |n: Option<usize>| count(n).map(|n| format!("{n} tokens"));
        let sampling: Vec<String> = self
            .parameters()
            .iter()
            .map(|(name, value, own)| {
                let value = rounded(*value);
                format!("{name} {value}{}", if *own { " (of the file)" } else { "" })
            })
            .collect();
        let template = match &self.template {
            None => "none: use `tern run` to continue a text".to_string(),
            Some(abilities) if abilities.is_empty() => "chat".into(),
            Some(abilities) => format!("chat, {}", abilities.join(", ")),
        };
        let rows = [
            ("name", self.name.as_deref().map(|name| shown(name).to_string())),
            ("architecture", Some(shown(&self.architecture).to_string())),
            ("weights", Some(units::thousands(self.weights))),
            ("size", Some(units::bytes(self.bytes))),
            ("quantization", Some(formats.join(", "))),
            ("context", tokens(self.context)),
            ("vocabulary", tokens(self.vocabulary)),
            ("layers", count(self.layers)),
            ("width", count(self.width)),
            ("template", Some(template)),
            ("images", self.images.map(str::to_string)),
            ("sampling", Some(sampling.join(", "))),
            ("licence", self.licence.as_deref().map(|licence| shown(licence).to_string())),
            ("cannot be run", self.why_not.as_deref().map(|why| escaped(why).into_owned())),
        ];
        let line = |(name, value): (&str, Option<String>)| Some(format!("{name:13}  {}\n", value?));
        rows.into_iter().filter_map(line).collect()
    }

    fn to_json(&self) -> Value {
        let formats: Vec<Value> =
            self.formats.iter().map(|(name, share)| json!({"format": name, "share": share})).collect();
        let sampling: Map<String, Value> = self
            .parameters()
            .iter()
            .map(|(name, value, _)| (name.to_string(), json!(rounded(*value))))
            .collect();
        json!({
            "name": self.name,
            "architecture": self.architecture,
            "weights": self.weights,
            "bytes": self.bytes,
            "formats": formats,
            "context": self.context,
            "vocabulary": self.vocabulary,
            "layers": self.layers,
            "width": self.width,
            "template": self.template,
            "images": self.images,
            "sampling": sampling,
            "licence": self.licence,
            "why_not": self.why_not,
        })
    }
}

/// Without the digits that a single float does not have.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// The kind of the tower that a model would be loaded with.
fn tower_of(checkpoint: &Checkpoint) -> Option<&'static str> {
    let tower = OpenedTower::beside(checkpoint, Access::default()).ok()??;
    Some(tower.tower.kind.name)
}

/// What the chat template can express besides messages; none without a template.
fn abilities(checkpoint: &Checkpoint) -> Option<Vec<&'static str>> {
    let tokenizer = Tokenizer::from_metadata(&checkpoint.metadata).ok()?;
    let template = ChatTemplate::new(tokenizer.chat_template()?, "", "").ok()?;
    let markup = template.markup();
    let mut abilities = vec![];
    if markup.calls.is_some() {
        abilities.push("tools");
    }
    if markup.reasoning.is_some() || markup.channels.is_some() {
        abilities.push("thinking");
    }
    Some(abilities)
}
