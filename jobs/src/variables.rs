//! Replaces `${...}` in the strings of a job file: by dates, such as for partitions of a day, and
//! by environment variables.

use chrono::format::StrftimeItems;
use chrono::{DateTime, Days, Months, TimeDelta, Utc};

/// The allowed texts between `${` and `}`.
const ALLOWED: &str = "allowed: ${date:FORMAT}, ${date:FORMAT,OFFSET} such as ${date:%Y-%m-%d,-1d}, \
                       and ${env:NAME}; $${ stands for ${ itself";

/// Replaces the variables of a text by `date` or by values of `env`.
///
/// # Errors
///
/// Names the variable, and the allowed ones.
pub(crate) fn expand(
    text: &str,
    date: DateTime<Utc>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, variable) = rest.split_at(at);
        let start = &variable["${".len()..];
        if let Some(before) = before.strip_suffix('$') {
            expanded.push_str(before);
            expanded.push_str("${");
            rest = start;
            continue;
        }
        expanded.push_str(before);
        let Some((name, after)) = start.split_once('}') else {
            return Err(format!("`{variable}` has no closing brace; {ALLOWED}"));
        };
        let value = match name.split_once(':') {
            Some(("date", format)) => dated(format, date)?,
            Some(("env", set)) => {
                env(set).ok_or_else(|| format!("the environment variable `{set}` is not set"))?
            }
            _ => return Err(format!("`${{{name}}}` is no variable; {ALLOWED}")),
        };
        expanded.push_str(&value);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// Formats a date by `FORMAT` or `FORMAT,OFFSET`.
fn dated(written: &str, date: DateTime<Utc>) -> Result<String, String> {
    let (format, date) = match written.rsplit_once(',') {
        None => (written, date),
        Some((format, offset)) => {
            let moved = moved(date, offset.trim()).ok_or_else(|| {
                format!(
                    "`{offset}` is no offset of a date; allowed: a sign, a number and h, d, w or \
                     mo (hours, days, weeks, months), such as -1d"
                )
            })?;
            (format, moved)
        }
    };
    let items = StrftimeItems::new(format).parse();
    let items = items.ok().filter(|items| !items.is_empty());
    let Some(items) = items else {
        return Err(format!(
            "`{format}` is no format of a date; allowed are the codes of strftime, such as %Y-%m-%d"
        ));
    };
    Ok(date.format_with_items(items.iter()).to_string())
}

/// Moves a date by an offset such as `-1d`; none if it is no offset, or the result is no date.
fn moved(date: DateTime<Utc>, offset: &str) -> Option<DateTime<Utc>> {
    let is_back = offset.starts_with('-');
    let number = offset.strip_prefix(['-', '+'])?;
    let unit = number.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u32 = number[..number.len() - unit.len()].parse().ok()?;
    let by_days = |days: u32| {
        let days = Days::new(days.into());
        if is_back {
            date.checked_sub_days(days)
        } else {
            date.checked_add_days(days)
        }
    };
    match unit {
        "h" if is_back => date.checked_sub_signed(TimeDelta::hours(number.into())),
        "h" => date.checked_add_signed(TimeDelta::hours(number.into())),
        "d" => by_days(number),
        "w" => by_days(number.checked_mul(7)?),
        "mo" if is_back => date.checked_sub_months(Months::new(number)),
        "mo" => date.checked_add_months(Months::new(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, String> {
        let date = "2026-03-01T04:05:06Z".parse().unwrap();
        let home = |name: &str| (name == "HOME").then(|| "/home/${me}".to_owned());
        expand(text, date, home)
    }

    #[test]
    fn variables_stand_for_dates_and_the_environment() {
        for (text, expected) in [
            ("plain", "plain"),
            ("", ""),
            ("a/${date:%Y-%m-%d}/b", "a/2026-03-01/b"),
            ("${date:%F,-1d}", "2026-02-28"),
            ("${date:%Y/%m/%d/%H,-5h}", "2026/02/28/23"),
            ("${date:%F, +2w}", "2026-03-15"),
            ("${date:%Y%m,-1mo}${date:%d,+1d}", "20260202"),
            ("dt=${date:%Y,%m,+0d}", "dt=2026,03"),
            // The value of a variable is not expanded again.
            ("${env:HOME}/x", "/home/${me}/x"),
            ("$${env:HOME} $HOME {} $", "${env:HOME} $HOME {} $"),
        ] {
            assert_eq!(expanded(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_variable_is_named() {
        for (text, named) in [
            ("a/${date:%F", "`${date:%F` has no closing brace"),
            ("${day}", "`${day}` is no variable"),
            ("${}", "`${}` is no variable"),
            ("${time:%F}", "`${time:%F}` is no variable"),
            ("${date:}", "`` is no format"),
            ("${date:%Q}", "`%Q` is no format"),
            ("${date:%F,1d}", "`1d` is no offset"),
            ("${date:%F,-d}", "`-d` is no offset"),
            ("${date:%F,-1y}", "`-1y` is no offset"),
            ("${date:%F,-4294967295w}", "is no offset"),
            ("${date:%F,-4294967295mo}", "is no offset"),
            ("${env:NONE}", "`NONE` is not set"),
        ] {
            let error = expanded(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
