//! The pre-tokenizers by name (`tokenizer.ggml.pre`): how text is split before BPE, and
//! other properties of the name.
//!
//! Patterns are those of the models' own `tokenizer.json`, with `(?i:...)` expanded.

use super::split::Step::{self, Pattern, Thousands};
use super::vocab::Spelling;

/// The pre-tokenizer of one or more `tokenizer.ggml.pre` names.
#[derive(Debug)]
pub(super) struct Pre {
    pub(super) names: &'static [&'static str],
    pub(super) steps: &'static [Step],
    /// A word that is a token is not merged, even if no merges produce it.
    pub(super) ignore_merges: bool,
    /// Whether BOS is added if `tokenizer.ggml.add_bos_token` is missing.
    pub(super) add_bos: bool,
    pub(super) spelling: Spelling,
}

const PLAIN: Pre =
    Pre { names: &[], steps: &[], ignore_merges: false, add_bos: false, spelling: Spelling::ByteLevel };

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}",
    r"\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}",
    r"\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}",
    r"\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}",
    r"\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}",
    r"\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}",
    r"\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}",
    r"\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}",
    r"\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}",
    r"\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}",
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}",
    r"\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}",
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}",
    r"\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}",
    r"\x{1E900}-\x{1E943}]+",
);
const DEEPSEEK_MARKS: &str =
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+";
const CJK: &str = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";
const CJK_AND_HANGUL: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
const ASIAN: &str = concat!(
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}",
    r"\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}",
    r"\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+",
);
const YOUTU_SCRIPTS: &str = concat!(
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}",
    r"\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|",
    r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
);
const LINES: &str = r"[^\n]+|[\n]+";
const BLOOM: &str = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+";

/// Every known name; others are rejected, because wrong splitting would silently change the tokens.
pub(super) const ALL: &[Pre] = &[
    Pre {
        names: &["default"],
        steps: &[
            Pattern(r"[\p{P}\$\+<=>\^~\|]+"),
            Pattern(GPT2),
            Pattern(r"\p{N}+"),
            Pattern("[0-9][0-9][0-9]"),
        ],
        ..PLAIN
    },
    Pre {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        steps: &[Pattern(LLAMA3)],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    Pre { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], steps: &[Pattern(LLAMA3)], ..PLAIN },
    Pre { names: &["glm4", "glm5"], steps: &[Pattern(LLAMA3)], ignore_merges: true, ..PLAIN },
    Pre {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        steps: &[Pattern(QWEN2)],
        ..PLAIN
    },
    Pre { names: &["qwen35"], steps: &[Pattern(QWEN35)], ..PLAIN },
    Pre { names: &["laguna"], steps: &[Pattern(LINES), Pattern(QWEN2)], ..PLAIN },
    Pre {
        names: &["ufakzeka"],
        steps: &[Pattern(
            r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ..PLAIN
    },
    Pre {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
        ],
        steps: &[Pattern(GPT2)],
        ..PLAIN
    },
    Pre {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        steps: &[Pattern(r"\p{N}"), Pattern(GPT2)],
        ..PLAIN
    },
    Pre {
        names: &["falcon"],
        steps: &[Pattern(r"[\p{P}\$\+<=>\^~\|`]+"), Pattern(GPT2), Pattern("[0-9][0-9][0-9]")],
        ..PLAIN
    },
    Pre {
        names: &["deepseek-llm"],
        steps: &[
            Pattern(r"[\r\n]"),
            Pattern(DEEPSEEK_LETTERS),
            Pattern(DEEPSEEK_MARKS),
            Pattern(r"\s+$"),
            Pattern(CJK_AND_HANGUL),
            Pattern(r"\p{N}+"),
        ],
        ..PLAIN
    },
    Pre {
        names: &["deepseek-coder"],
        steps: &[
            Pattern(r"[\r\n]"),
            Pattern(r"\s?\p{L}+"),
            Pattern(r"\s?\p{P}+"),
            Pattern(CJK_AND_HANGUL),
            Pattern(r"\p{N}"),
        ],
        ..PLAIN
    },
    Pre {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        steps: &[Pattern(r"\p{N}{1,3}"), Pattern(CJK), Pattern(DEEPSEEK3)],
        ..PLAIN
    },
    Pre {
        names: &["spark2_5"],
        steps: &[
            Pattern(r"\p{N}{1,3}"),
            Pattern(CJK),
            Pattern(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
            ),
            Pattern(r"\p{N}"),
        ],
        ..PLAIN
    },
    Pre { names: &["afmoe"], steps: &[Thousands(r"\p{N}+"), Pattern(ASIAN), Pattern(DEEPSEEK3)], ..PLAIN },
    Pre {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        steps: &[Pattern(GPT4O)],
        ..PLAIN
    },
    Pre { names: &["granite-embed-multi-97m"], steps: &[Pattern(GPT4O)], ignore_merges: true, ..PLAIN },
    Pre { names: &["tiny_aya", "cohere2moe"], steps: &[Thousands(r"\d+\b"), Pattern(GPT4O)], ..PLAIN },
    Pre { names: &["youtu"], steps: &[Pattern(YOUTU_SCRIPTS), Pattern(YOUTU)], ignore_merges: true, ..PLAIN },
    Pre { names: &["tekken"], steps: &[Pattern(TEKKEN)], ignore_merges: true, add_bos: true, ..PLAIN },
    Pre { names: &["kimi-k2"], steps: &[Pattern(KIMI_K2)], ..PLAIN },
    Pre { names: &["superbpe"], steps: &[Thousands(r"\p{N}+")], ..PLAIN },
    Pre {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        steps: &[Pattern(
            r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        )],
        ..PLAIN
    },
    Pre {
        names: &["seed-coder"],
        steps: &[Pattern(
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ..PLAIN
    },
    Pre {
        names: &["minicpm5"],
        steps: &[
            Pattern(r"\p{N}{1,3}"),
            Pattern(
                r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ),
        ],
        ignore_merges: true,
        ..PLAIN
    },
    Pre {
        names: &["exaone-moe"],
        steps: &[Pattern(
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )],
        ..PLAIN
    },
    Pre { names: &["bloom", "poro-chat", "gpt3-finnish"], steps: &[Pattern(BLOOM)], ..PLAIN },
    Pre { names: &["viking"], steps: &[Pattern(BLOOM), Pattern(r"\p{N}")], ..PLAIN },
    Pre {
        names: &["chameleon"],
        steps: &[
            Pattern("<sentinel:[0-9]+>"),
            Pattern("IMGIMG[A-I]{1,4}Z"),
            Pattern(r"[\t\n]|    |  "),
            Pattern(r"\p{N}"),
            Pattern(r"[\p{P}!-/:-@\[-`{-~]"),
            Pattern(GPT2),
        ],
        add_bos: true,
        ..PLAIN
    },
    Pre {
        names: &["gemma4", "granite-embed-multi-311m"],
        steps: &[Pattern(LINES)],
        add_bos: true,
        spelling: Spelling::SpaceMark,
        ..PLAIN
    },
    Pre { names: &["sarvam-moe"], steps: &[Pattern(LINES)], spelling: Spelling::SpaceMark, ..PLAIN },
];

/// The pre-tokenizer of a name.
pub(super) fn find(name: &str) -> Option<&'static Pre> {
    ALL.iter().find(|pre| pre.names.contains(&name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        let names: Vec<&str> = ALL.iter().flat_map(|pre| pre.names).copied().collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(find("llama-bpe").unwrap().ignore_merges);
        assert!(find("no-such-cut").is_none());
    }
}
