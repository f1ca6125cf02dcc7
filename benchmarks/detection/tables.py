"""Prints the tables of rules and thresholds that stand in docs/detection.md."""

from __future__ import annotations

from kltune.domain.profiles import PROFILES


def main() -> None:
    rules = {rule.id: rule for profile in PROFILES.values() for rule in profile.rules}
    print("| rule | profiles | watches | fires | kind |\n|---|---|---|---|---|")
    for rule in rules.values():
        names = ", ".join(p.name for p in PROFILES.values() if rule in p.rules)
        print(f"| `{rule.id}` | {names} | {rule.watches} | {rule.fires} | {rule.kind.value} |")
    print("\n| threshold | value | source |\n|---|---|---|")
    thresholds = {k: t for profile in PROFILES.values() for k, t in profile.thresholds.items()}
    for key, threshold in thresholds.items():
        print(f"| `{key}` | {threshold.value:g} | {threshold.source} |")


if __name__ == "__main__":
    main()
