//! Rules of bytes: what expressions are compiled to.
//!
//! A rule has alternatives, and an alternative is a run of items that ends with `End`. Groups, classes and
//! repetitions become rules without a name. A repetition refers to itself at its end, where nothing remains
//! to return to, so that its length needs no stack.

use std::collections::{BTreeMap, BTreeSet};

use super::bytes::{ByteSet, of_class};
use super::parse::{Definitions, Expression, parse};
use crate::limits;

/// One step of an alternative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Item {
    /// One byte of this set.
    Byte(ByteSet),
    /// What this rule matches.
    Rule(u32),
    /// The end of the alternative.
    End,
}

/// The rules of a grammar.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(super) items: Vec<Item>,
    /// Per rule: where in `items` its alternatives start.
    pub(super) starts: Vec<Vec<u32>>,
    /// The rule of the whole text.
    pub(super) root: u32,
    /// Per rule: whether it repeats itself at its end.
    repeats: Vec<bool>,
}

impl Rules {
    /// Parses and compiles a grammar.
    pub(crate) fn new(text: &str) -> Result<Rules, String> {
        let definitions = parse(text)?;
        let mut rules = Rules::default();
        let names: BTreeMap<&str, u32> =
            definitions.keys().map(String::as_str).zip((0..).map(|_| rules.new_rule())).collect();
        rules.root = *names.get("root").ok_or("there is no rule `root`")?;
        let mut compiler = Compiler { rules, names };
        compiler.compile(&definitions)?;
        let rules = compiler.rules;
        rules.check_left_recursion(&definitions)?;
        Ok(rules)
    }

    fn new_rule(&mut self) -> u32 {
        self.starts.push(vec![]);
        self.repeats.push(false);
        self.starts.len() as u32 - 1
    }

    fn add(&mut self, rule: u32, alternative: &[Item]) -> Result<(), String> {
        if self.items.len() + alternative.len() >= limits::GBNF_ITEMS {
            return Err(format!("it has more than {} items, with all repetitions", limits::GBNF_ITEMS));
        }
        self.starts[rule as usize].push(self.items.len() as u32);
        self.items.extend(alternative);
        self.items.push(Item::End);
        Ok(())
    }

    /// The items of an alternative, without its end.
    fn alternative(&self, start: u32) -> impl Iterator<Item = Item> {
        self.items[start as usize..].iter().copied().take_while(|item| *item != Item::End)
    }

    /// The rules that match the empty text.
    fn nullable(&self) -> Vec<bool> {
        let mut nullable = vec![false; self.starts.len()];
        loop {
            let mut changed = false;
            for rule in 0..self.starts.len() {
                let empty = |item| matches!(item, Item::Rule(other) if nullable[other as usize]);
                let is = self.starts[rule].iter().any(|&start| self.alternative(start).all(empty));
                changed |= is && !nullable[rule];
                nullable[rule] |= is;
            }
            if !changed {
                return nullable;
            }
        }
    }

    /// A rule that begins with itself would need an endless stack.
    fn check_left_recursion(&self, definitions: &Definitions) -> Result<(), String> {
        let nullable = self.nullable();
        let first_rules = |rule: usize| {
            let mut first = BTreeSet::new();
            for &start in &self.starts[rule] {
                for item in self.alternative(start) {
                    let Item::Rule(other) = item else { break };
                    if !(self.repeats[rule] && other as usize == rule) {
                        first.insert(other as usize);
                    }
                    if !nullable[other as usize] {
                        break;
                    }
                }
            }
            first
        };
        let first: Vec<BTreeSet<usize>> = (0..self.starts.len()).map(first_rules).collect();
        for (rule, name) in definitions.keys().enumerate() {
            let (mut reached, mut open) = (BTreeSet::new(), vec![rule]);
            while let Some(at) = open.pop() {
                for &next in &first[at] {
                    if next == rule {
                        return Err(format!(
                            "rule `{name}` begins with itself: left recursion is not supported"
                        ));
                    }
                    if reached.insert(next) {
                        open.push(next);
                    }
                }
            }
        }
        Ok(())
    }
}

struct Compiler<'a> {
    rules: Rules,
    names: BTreeMap<&'a str, u32>,
}

impl Compiler<'_> {
    fn compile(&mut self, definitions: &Definitions) -> Result<(), String> {
        for (rule, (name, expression)) in (0..).zip(definitions) {
            self.choice(rule, expression).map_err(|why| format!("rule `{name}`: {why}"))?;
        }
        Ok(())
    }

    /// Adds the alternatives of an expression to a rule.
    fn choice(&mut self, rule: u32, expression: &Expression) -> Result<(), String> {
        let choices = match expression {
            Expression::Choice(choices) => choices.as_slice(),
            one => std::slice::from_ref(one),
        };
        for choice in choices {
            let mut items = vec![];
            self.append(choice, &mut items)?;
            self.rules.add(rule, &items)?;
        }
        Ok(())
    }

    fn append(&mut self, expression: &Expression, items: &mut Vec<Item>) -> Result<(), String> {
        match expression {
            Expression::Text(text) => {
                items.extend(text.bytes().map(|byte| Item::Byte(ByteSet::range(byte, byte))))
            }
            Expression::Class(ranges) => items.push(self.class(ranges, false)?),
            Expression::NotClass(ranges) => items.push(self.class(ranges, true)?),
            Expression::Rule(name) => {
                let rule = self.names.get(name.as_str());
                items.push(Item::Rule(*rule.ok_or_else(|| format!("there is no rule `{name}`"))?));
            }
            Expression::Sequence(parts) => {
                for part in parts {
                    self.append(part, items)?;
                }
            }
            Expression::Choice(_) => {
                let rule = self.rules.new_rule();
                self.choice(rule, expression)?;
                items.push(Item::Rule(rule));
            }
            Expression::Repeat(inner, least, most) => self.repeat(inner, *least, *most, items)?,
        }
        Ok(())
    }

    fn repeat(
        &mut self,
        inner: &Expression,
        least: usize,
        most: Option<usize>,
        items: &mut Vec<Item>,
    ) -> Result<(), String> {
        let one = self.rules.new_rule();
        self.choice(one, inner)?;
        let item = Item::Rule(one);
        items.extend(std::iter::repeat_n(item, least));
        match most {
            None => {
                let rest = self.rules.new_rule();
                self.rules.repeats[rest as usize] = true;
                self.rules.add(rest, &[item, Item::Rule(rest)])?;
                self.rules.add(rest, &[])?;
                items.push(Item::Rule(rest));
            }
            // each optional one contains the next
            Some(most) => {
                let mut next = None;
                for _ in least..most {
                    let optional = self.rules.new_rule();
                    let alternative: Vec<Item> = [item].into_iter().chain(next).collect();
                    self.rules.add(optional, &alternative)?;
                    self.rules.add(optional, &[])?;
                    next = Some(Item::Rule(optional));
                }
                items.extend(next);
            }
        }
        Ok(())
    }

    /// One character: a byte, or a rule of its spellings.
    fn class(&mut self, ranges: &[(char, char)], negated: bool) -> Result<Item, String> {
        let sequences = of_class(ranges, negated);
        if let [only] = sequences.as_slice()
            && let [set] = only.as_slice()
        {
            return Ok(Item::Byte(*set));
        }
        let rule = self.rules.new_rule();
        for sequence in sequences {
            let items: Vec<Item> = sequence.into_iter().map(Item::Byte).collect();
            self.rules.add(rule, &items)?;
        }
        Ok(Item::Rule(rule))
    }
}
