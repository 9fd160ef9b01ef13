//! Compiled code rewritten so that every step that can grow a value passes the meter.
//!
//! The engine bounds steps, not bytes: `{% set x = x ~ x %}` doubles a string in four steps.
//! Here operators, filters, methods and literal text become calls of the functions in `ops`,
//! which count bytes and follow Python where the engine differs.

use minijinja::Value;
use minijinja::machinery::{Instruction, Instructions};

/// Functions that rewritten code calls. Their names cannot be written in a template after `|`.
pub(super) mod op {
    pub(in super::super) const ADD: &str = "+";
    pub(in super::super) const MUL: &str = "*";
    pub(in super::super) const REM: &str = "%";
    pub(in super::super) const CONCAT: &str = "~";
    pub(in super::super) const SLICE: &str = "[:]";
    pub(in super::super) const READ: &str = "(read)";
    pub(in super::super) const BUILT: &str = "(built)";
    pub(in super::super) const STORED: &str = "(stored)";
    pub(in super::super) const RETURNED: &str = "(returned)";
    pub(in super::super) const LOOPED: &str = "(looped)";
    pub(in super::super) const FILTER: &str = "|";
    pub(in super::super) const METHOD: &str = ".()";
    pub(in super::super) const ATTRIBUTE: &str = ".";
    pub(super) const ALL: [&str; 13] =
        [ADD, MUL, REM, CONCAT, SLICE, READ, BUILT, STORED, RETURNED, LOOPED, FILTER, METHOD, ATTRIBUTE];
}

/// Names that are methods of Python's dictionaries before they are keys.
const DICT_METHODS: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];

/// The same program, metered.
pub(super) fn metered<'s>(code: &Instructions<'s>) -> Instructions<'s> {
    let mut groups = Vec::new(); // what each old instruction became
    let mut starts = Vec::new(); // where each old instruction now begins
    let mut at = 0;
    while let Some(old) = code.get(groups.len() as u32) {
        let group = expand(old);
        starts.push(at);
        at += group.len() as u32;
        groups.push(group);
    }
    starts.push(at); // a jump past the end
    let mut new = Instructions::new(code.name(), code.source());
    for (i, group) in groups.into_iter().enumerate() {
        let line = code.get_line(i as u32).unwrap_or(0);
        for mut instruction in group {
            if let Some(target) = target(&mut instruction) {
                *target = starts.get(*target as usize).copied().unwrap_or(at);
            }
            new.add_with_line(instruction, u16::try_from(line).unwrap_or(u16::MAX));
        }
    }
    new
}

/// Where an instruction may continue, if not at the next one.
fn target<'a>(instruction: &'a mut Instruction<'_>) -> Option<&'a mut u32> {
    match instruction {
        Instruction::Jump(to)
        | Instruction::JumpIfFalse(to)
        | Instruction::JumpIfFalseOrPop(to)
        | Instruction::JumpIfTrueOrPop(to)
        | Instruction::Iterate(to)
        | Instruction::BuildMacro(_, to, _) => Some(to),
        _ => None,
    }
}

/// A call of one of our functions with the top `count` values of the stack.
fn call<'s>(name: &'static str, count: u16) -> Instruction<'s> {
    Instruction::ApplyFilter(name, Some(count), slot(name))
}

/// The engine caches filters by a small number; all that remain are ours.
fn slot(name: &str) -> u8 {
    op::ALL.iter().position(|&op| op == name).map_or(!0, |at| at as u8)
}

/// `function(values.., name)` in place of the engine's own dispatch by name.
fn named<'s>(function: &'static str, name: &str, count: Option<u16>) -> Vec<Instruction<'s>> {
    let name = Instruction::LoadConst(Value::from(name));
    match count {
        Some(count) => vec![name, call(function, count.saturating_add(1))],
        // arguments were unpacked: their number lies on the stack, the name goes below it
        None => vec![
            name,
            Instruction::Swap,
            Instruction::LoadConst(Value::from(1)),
            Instruction::Add,
            Instruction::ApplyFilter(function, None, slot(function)),
        ],
    }
}

fn expand<'s>(old: &Instruction<'s>) -> Vec<Instruction<'s>> {
    use Instruction as I;
    match old {
        I::EmitRaw(text) => vec![I::LoadConst(Value::from(*text)), I::Emit],
        I::Add => vec![call(op::ADD, 2)],
        I::Mul => vec![call(op::MUL, 2)],
        I::Rem => vec![call(op::REM, 2)],
        I::StringConcat => vec![call(op::CONCAT, 2)],
        I::Slice => vec![call(op::SLICE, 4)],
        I::ApplyFilter(name, count, _) => named(op::FILTER, name, *count),
        I::CallMethod(name, count) => named(op::METHOD, name, *count),
        I::GetAttr(name) if DICT_METHODS.contains(name) => named(op::ATTRIBUTE, name, Some(1)),
        I::CallFunction(..) | I::CallObject(_) => vec![old.clone(), call(op::RETURNED, 1)],
        I::BuildList(_) | I::BuildTuple(_) | I::BuildMap(_) => vec![old.clone(), call(op::BUILT, 1)],
        I::BuildKwargs(_) | I::MergeKwargs(_) => vec![old.clone(), call(op::READ, 1)],
        // comparing costs no more than reading the right side
        I::Eq | I::Ne | I::Lt | I::Lte | I::Gt | I::Gte | I::In | I::CompareAndPreserve(_) => {
            vec![call(op::READ, 1), old.clone()]
        }
        I::PerformTest(_, Some(1..), _) => vec![call(op::READ, 1), old.clone()],
        I::SetAttr(_) => vec![I::Swap, call(op::STORED, 1), I::Swap, old.clone()],
        I::PushLoop(_) => vec![call(op::LOOPED, 1), old.clone()],
        _ => vec![old.clone()],
    }
}
