from kltune.cli.app import main


def test_reference_search_and_confirmation_lead_to_a_calibrated_verdict(project, capsys):
    code = main(["run", "--format", "json"])
    assert code == 0
    project.assert_consistent()
