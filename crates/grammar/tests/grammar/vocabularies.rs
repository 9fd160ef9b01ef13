//! Vocabularies for tests: the small one in the repository, and larger ones if they are available.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tern_formats::{Checkpoint, Metadata, Value};
use tern_grammar::GrammarCompiler;
use tern_text::Tokenizer;

/// A vocabulary with its grammar compiler.
pub(crate) struct Vocabulary {
    pub(crate) name: &'static str,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) compiler: GrammarCompiler,
    /// The tokens that consist of closing characters only.
    pub(crate) closing: Vec<bool>,
    /// The tokens of at most two bytes.
    pub(crate) short: Vec<bool>,
}

fn open(name: &'static str, path: &Path) -> Vocabulary {
    make(name, &Checkpoint::open(path).unwrap().metadata)
}

/// One token per byte, and markers: control tokens, two of which are end tokens, and one ordinary token.
fn bytes(name: &'static str, controls: &[&str]) -> Vocabulary {
    let prints = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0x100..).filter_map(char::from_u32);
    let mut others = others.map(|c| c.to_string());
    let mut tokens: Vec<String> = (0..=255u8)
        .map(|byte| if prints(&byte) { char::from(byte).to_string() } else { others.next().unwrap() })
        .collect();
    tokens.extend(["<|endoftext|>", "<|im_end|>", "[TOOL_CALLS]", "<tool_call>"].map(String::from));
    let mut kinds = vec![1; 256];
    kinds.extend([3, 3, 3, 4]);
    tokens.extend(controls.iter().map(|text| text.to_string()));
    kinds.extend(controls.iter().map(|_| 3));
    let mut metadata = Metadata::default();
    metadata.insert("tokenizer.ggml.model", Value::String("gpt2".into()));
    metadata.insert("tokenizer.ggml.pre", Value::String("gpt-2".into()));
    metadata.insert("tokenizer.ggml.tokens", Value::Strings(tokens));
    metadata.insert("tokenizer.ggml.token_type", Value::Ints(kinds));
    metadata.insert("tokenizer.ggml.merges", Value::Strings([].into()));
    metadata.insert("tokenizer.ggml.eos_token_id", Value::Uint(256));
    let vocabulary = make(name, &metadata);
    assert_eq!(vocabulary.tokenizer.eog().len(), 2);
    vocabulary
}

fn make(name: &'static str, metadata: &Metadata) -> Vocabulary {
    let tokenizer = Arc::new(Tokenizer::from_metadata(metadata).unwrap());
    let of_bytes = |test: fn(&[u8]) -> bool| {
        (0..tokenizer.vocab_size() as u32).map(|id| test(tokenizer.token_bytes(id, true))).collect()
    };
    Vocabulary {
        name,
        compiler: GrammarCompiler::new(Arc::clone(&tokenizer)),
        closing: of_bytes(|bytes| bytes.iter().all(|byte| b"\"]}".contains(byte))),
        short: of_bytes(|bytes| bytes.len() <= 2),
        tokenizer,
    }
}

/// One token per byte, and the control tokens of styles of calls.
pub(crate) fn controls() -> &'static Vocabulary {
    static CONTROLS: OnceLock<Vocabulary> = OnceLock::new();
    let texts = [
        "｜DSML｜",
        "<|open|>",
        "<|close|>",
        "<|sep|>",
        "<|tool_call>",
        "<tool_call|>",
        "<|\"|>",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "<minimax:tool_call>",
    ];
    CONTROLS.get_or_init(|| bytes("controls", &texts))
}

/// The vocabulary in the repository.
pub(crate) fn stories() -> &'static Vocabulary {
    &all()[0]
}

/// All available vocabularies. SmolLM2 uses BPE, TinyLlama SentencePiece.
pub(crate) fn all() -> &'static [Vocabulary] {
    static ALL: OnceLock<Vec<Vocabulary>> = OnceLock::new();
    ALL.get_or_init(|| {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tern/models");
        let mut all = vec![open("stories", &models.join("tern-stories-1bit.gguf")), bytes("bytes", &[])];
        let data = std::env::var_os("TERN_TEST_DATA").map(PathBuf::from);
        for (name, file) in
            [("SmolLM2", "smollm2-135m-instruct-q4_1.gguf"), ("TinyLlama", "tinyllama-iq2_xxs.gguf")]
        {
            match data.as_ref().map(|data| data.join(file)).filter(|path| path.exists()) {
                Some(path) => all.push(open(name, &path)),
                None => println!("skipped: {name} (not in TERN_TEST_DATA)"),
            }
        }
        all
    })
}
