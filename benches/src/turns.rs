//! The order of runs, and the numbers that describe several runs.

/// One run: the position of a competitor, and the number of the turn; `None` warms up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Turn {
    pub(crate) competitor: usize,
    pub(crate) turn: Option<usize>,
}

/// Returns the order of runs: first each competitor of `warm_ups`, then all in turns.
///
/// So whatever else happens on the machine affects all competitors alike.
pub(crate) fn order(warm_ups: &[usize], competitors: usize, turns: usize) -> Vec<Turn> {
    let warm_ups = warm_ups.iter().map(|&competitor| Turn {
        competitor,
        turn: None,
    });
    let measured = (0..turns).flat_map(|turn| {
        (0..competitors).map(move |competitor| Turn {
            competitor,
            turn: Some(turn),
        })
    });
    warm_ups.chain(measured).collect()
}

/// Median, least and greatest of some figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// Returns `None` without figures. The median of an even number is the mean of the middle two.
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        Some(Self {
            median,
            least,
            most,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn competitors_take_turns_after_the_warm_up() {
        let text = |warm_ups: &[usize], competitors, turns| -> String {
            let name = |run: Turn| {
                let letter = ["A", "B", "C"][run.competitor];
                run.turn
                    .map_or_else(|| letter.to_lowercase(), |turn| format!("{letter}{turn}"))
            };
            let names: Vec<String> = order(warm_ups, competitors, turns)
                .into_iter()
                .map(name)
                .collect();
            names.join(" ")
        };
        assert_eq!(text(&[0, 1], 3, 2), "a b A0 B0 C0 A1 B1 C1");
        assert_eq!(text(&[], 1, 3), "A0 A1 A2");
        assert_eq!(text(&[0], 2, 0), "a");
    }

    #[test]
    fn a_spread_has_the_median() {
        let spread = |figures: &[f64]| {
            let spread = Spread::of(figures.iter().copied())?;
            Some((spread.least, spread.median, spread.most))
        };
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((1.0, 2.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 100.0]), Some((1.0, 3.0, 100.0)));
        assert_eq!(spread(&[5.0]), Some((5.0, 5.0, 5.0)));
        assert_eq!(spread(&[]), None);
    }
}
