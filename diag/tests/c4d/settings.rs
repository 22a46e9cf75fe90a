//! Thresholds: what is refused, and how it is said.

use diag::c4d::settings::Settings;

#[test]
fn the_defaults_hold_and_survive_a_file() {
    let settings = Settings::default();
    settings.check().unwrap();
    let text = toml::to_string(&settings).unwrap();
    assert_eq!(toml::from_str::<Settings>(&text).unwrap(), settings);
    assert_eq!(toml::from_str::<Settings>("").unwrap(), settings);
    assert!(!settings.telemetry_may_drain);
}

#[test]
fn an_unknown_key_is_refused() {
    assert!(toml::from_str::<Settings>("floor_s = 10").is_err());
}

#[test]
fn every_mistake_is_said_by_its_key() {
    let wrong = Settings {
        floor_ms: 0,
        gap_factor: f64::NAN,
        late_share: 0.5,
        busy_percent: 0,
        slow_ratio: f64::INFINITY,
        ..Settings::default()
    };
    let mistakes: Vec<String> = wrong.check().unwrap_err().iter().map(ToString::to_string).collect();
    for key in ["floor_ms", "gap_factor", "late_share", "busy_percent", "slow_ratio"] {
        assert_eq!(
            mistakes.iter().filter(|line| line.starts_with(&format!("policy: c4d.{key}: "))).count(),
            1,
            "{key}: {mistakes:#?}"
        );
    }
    let upside = Settings { floor_ms: 60_000, ceiling_ms: 30_000, silent_ms: 60_000, ..Settings::default() };
    let mistakes = upside.check().unwrap_err();
    assert!(mistakes[0].to_string().contains("is below c4d.floor_ms (60000)"));
    assert!(mistakes[1].to_string().contains("is not below c4d.floor_ms"));
}
