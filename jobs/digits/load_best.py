"""Load what a run of this experiment has left in RUN/best and judge it again, with plain torch.

python load_best.py RUN
"""

import json
import sys
from pathlib import Path

import torch
from train import Net, digits


def main(run: Path) -> None:
    best = json.loads((run / "best" / "best.json").read_text())
    net = Net()
    net.load_state_dict(torch.load(run / "best" / "model.pt", weights_only=True))
    _, _, images, labels = digits(torch.device("cpu"))
    with torch.no_grad():
        accuracy = (net(images).argmax(dim=1) == labels).float().mean().item()
    print(
        f"{run / 'best' / 'model.pt'}: accuracy {accuracy:.4f} on the {len(labels)} images that were not trained on"
    )
    print(json.dumps(best))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
