from pathlib import Path

from moray.errors import UserError
from moray.workers.faults import FirstFault


def test_of_several_faults_the_first_one_stays_until_it_is_cleared(tmp_path: Path) -> None:
    here, elsewhere = FirstFault(tmp_path), FirstFault(tmp_path)
    assert elsewhere.found() is None
    here.record(UserError("a.key", "is wrong", "set it right"))
    elsewhere.record(UserError("b.key", "is wrong too", "set it right"))
    for seen in (here.found(), elsewhere.found()):
        assert str(seen) == "a.key: is wrong; set it right"
    assert [path.name for path in tmp_path.iterdir()] == ["fault.json"]
    here.clear()
    assert elsewhere.found() is None
