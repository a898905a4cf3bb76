"""Lines as tools print them, with what is to be read: the last step, its total, the last metric."""

from __future__ import annotations

from dataclasses import dataclass

NOTHING = None


@dataclass(frozen=True)
class Sample:
    """A log.

    Attributes:
        name: Name of the tool.
        lines: Its lines.
        step: The last step that is reported.
        total: How many steps the program says there are; None: it does not.
        metric: Name of the metric that is looked for.
        value: Its last value that is reported; None: none is.
        unit: What is counted.
    """

    name: str
    lines: tuple[str, ...]
    step: int | None
    total: int | None = None
    metric: str = "loss"
    value: float | None = None
    unit: str = "step"


FULL, HALF = "█" * 10, "█████     "

LOGS = (
    Sample("words", ("step 1/10 loss 0.9", "step 3/10 loss 0.31"), 3, 10, value=0.31),
    Sample("words with commas", ("Step 600/10,000", "Step 1,200/10,000 | loss: 0.5"), 1200, 10_000, value=0.5),
    Sample("words with underscores", ("step=1_200 loss=0.5",), 1200, value=0.5),
    Sample("words with thousands", ("Step 1.2k | loss 0.5",), 1200, value=0.5),
    Sample("words of", ("Training step 12 of 400: loss = 4.2e-01",), 12, 400, value=0.42),
    Sample("epochs in words", ("Epoch 3/10 loss 0.125",), 3, 10, value=0.125, unit="epoch"),
    Sample(
        "Hugging Face Trainer without a bar",
        (
            "{'loss': 0.61, 'grad_norm': 2.1, 'learning_rate': 5e-05, 'epoch': 0.5}",
            "{'loss': 0.31, 'grad_norm': 2.1, 'learning_rate': 4e-05, 'epoch': 1.0}",
            "{'eval_loss': 0.4, 'eval_runtime': 3.2, 'epoch': 1.0}",
            "{'loss': '0.25', 'learning_rate': '3e-05', 'epoch': '1.53'}",
        ),
        1,
        metric="eval_loss",
        value=0.4,
        unit="epoch",
    ),
    Sample(
        "Hugging Face Trainer",
        (
            f" 12%|{HALF}| 120/1000 [00:02<00:15, 9.8it/s]",
            "{'loss': 0.31, 'learning_rate': 5e-05, 'epoch': 0.5}",
            f" 12%|{HALF}| 121/1000 [00:12<01:30, 9.8it/s]",
            f"100%|{FULL}| 50/50 [00:05<00:00, 9.8it/s]",
            "{'loss': 0.21, 'learning_rate': 4e-05, 'epoch': 1.0}",
        ),
        121,
        1000,
        value=0.21,
        unit="bar of 1000",
    ),
    Sample(
        "Keras",
        (
            "Epoch 1/10",
            "\x1b[1m  1/125\x1b[0m \x1b[32m━\x1b[0m\x1b[37m━━━━\x1b[0m \x1b[1m12s\x1b[0m 99ms/step - accuracy: 0.1 - loss: 2.3",
            "\x1b[1m125/125\x1b[0m \x1b[32m━━━━━\x1b[0m \x1b[1m2s\x1b[0m 3ms/step - accuracy: 0.91 - loss: 0.31",
            "\x1b[1m125/125\x1b[0m \x1b[32m━━━━━\x1b[0m \x1b[1m2s\x1b[0m 3ms/step - accuracy: 0.91 - loss: 0.31 - val_loss: 0.4",
            "Epoch 2/10",
            "\x1b[1m  1/125\x1b[0m \x1b[32m━\x1b[0m\x1b[37m━━━━\x1b[0m \x1b[1m12s\x1b[0m 99ms/step - accuracy: 0.1 - loss: 2.3",
        ),
        1,
        10,
        metric="val_loss",
        value=0.4,
        unit="epoch",
    ),
    Sample(
        "Keras 2",
        (
            "Epoch 3/10",
            "  1/125 [..............................] - ETA: 12s - loss: 2.3\b\b\b\b\b\b\b"
            "125/125 [==============================] - 2s 3ms/step - loss: 0.31 - val_loss: 0.4",
        ),
        3,
        10,
        value=0.31,
        unit="epoch",
    ),
    Sample(
        "Keras, a line an epoch",
        ("Epoch 3/10", "125/125 - 2s - 3ms/step - accuracy: 0.91 - loss: 0.31 - val_loss: 0.4"),
        3,
        10,
        metric="accuracy",
        value=0.91,
        unit="epoch",
    ),
    Sample(
        "XGBoost",
        ("[0]\ttrain-rmse:0.9\teval-rmse:0.8", "[10]\ttrain-rmse:0.3\teval-rmse:0.4"),
        11,
        metric="eval-rmse",
        value=0.4,
    ),
    Sample(
        "XGBoost with times", ("[22:10:05] [10]\ttrain-rmse:0.3\teval-rmse:0.4",), 11, metric="rmse", value=0.4
    ),
    Sample(
        "LightGBM",
        ("[LightGBM] [Info] Total Bins 255", "[10]\ttraining's l2: 0.3\tvalid_1's l2: 0.35"),
        10,
        metric="valid_1's l2",
        value=0.35,
    ),
    Sample(
        "CatBoost",
        ("10:\tlearn: 0.3\ttest: 0.4\tbest: 0.4 (10)\ttotal: 1.2s\tremaining: 3s",),
        11,
        metric="learn",
        value=0.3,
    ),
    Sample(
        "mmengine",
        (
            "2024/01/01 10:00:00 - mmengine - INFO - Epoch(train)  [1][ 50/138]  lr: 1e-02  eta: 0:15:10  loss: 2.3",
            "2024/01/01 10:00:00 - mmengine - INFO - Epoch(train)  [1][100/138]  lr: 1e-02  eta: 0:15:10  loss: 1.3",
            "2024/01/01 10:00:00 - mmengine - INFO - Epoch(val) [1][15/15]    coco/bbox_mAP: 0.3610  loss: 1",
        ),
        1,
        metric="coco/bbox_mAP",
        value=0.361,
        unit="epoch",
    ),
    Sample(
        "mmengine by iterations",
        ("2024/01/01 10:00:00 - mmengine - INFO - Iter(train) [  100/40000]  base_lr: 1e-02  loss: 2.3",),
        100,
        40_000,
        value=2.3,
    ),
    Sample(
        "ultralytics",
        (
            "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size",
            f"      3/100      2.1G      1.123      2.345      1.234        16        640:  50%|{HALF}| 4/8 [00:03<00:03,  2.5it/s]",
            f"      3/100      2.1G      1.023      2.345      1.234        16        640: 100%|{FULL}| 8/8 [00:03<00:00,  2.5it/s]",
            f"                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|{FULL}| 4/4 [00:01<00:00]",
            "                   all        128        929       0.64      0.537      0.605      0.446",
        ),
        3,
        100,
        metric="mAP50",
        value=0.605,
        unit="epoch",
    ),
    Sample(
        "ultralytics with its own bar",
        (
            "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size",
            "      3/100         0G      1.023      2.345      1.234        16        640: 100% ━━━━━━━━━━━━ 8/8 2.5it/s 3.2s",
        ),
        3,
        100,
        metric="box_loss",
        value=1.023,
        unit="epoch",
    ),
    Sample(
        "tqdm with epochs",
        (
            f"Epoch 0:  45%|{HALF}| 45/100 [00:12<00:15, 3.4it/s, loss=0.91]",
            f"Epoch 0: 100%|{FULL}| 100/100 [00:12<00:00, 3.4it/s, loss=0.61]",
            f"Epoch 1: 100%|{FULL}| 100/100 [00:12<00:00, 3.4it/s, loss=0.31]",
            f"Epoch 2:  45%|{HALF}| 45/100 [00:12<00:15, 3.4it/s, loss=0.21]",
        ),
        2,
        value=0.31,
        unit="epoch",
    ),
    Sample(
        "tqdm over epochs",
        (f"Epochs:  30%|{HALF}| 3/10 [00:12<00:15, 4.0s/it, loss=0.31]",),
        3,
        10,
        value=0.31,
        unit="epoch",
    ),
    Sample(
        "tqdm over steps",
        (f"Steps:  12%|{HALF}| 120/1000 [00:12<01:30, 9.8it/s, lr=0.0001, step_loss=0.31]",),
        120,
        1000,
        metric="step_loss",
        value=0.31,
        unit="bar of 1000",
    ),
    Sample(
        "tqdm with a loss",
        (f" 45%|{HALF}| 450/1000 [00:03<00:55, 10.0it/s, loss=0.31]",),
        450,
        1000,
        value=0.31,
        unit="bar of 1000",
    ),
    Sample(
        "tqdm alone, after a while",
        (f" 1%|{HALF}| 1/1000 [00:01<10:55, 1.0it/s]", f" 2%|{HALF}| 20/1000 [00:20<10:55, 1.0it/s]"),
        20,
        1000,
        value=None,
        unit="bar of 1000",
    ),
    Sample(
        "Lightning",
        (
            f"Sanity Checking DataLoader 0: 100%|{FULL}| 2/2 [00:00<00:00, 9.9it/s]",
            f"Epoch 0: 100%|{FULL}| 100/100 [00:12<00:00, 3.4it/s, v_num=0, train_loss=0.31]",
            f"Validation DataLoader 0: 100%|{FULL}| 20/20 [00:00<00:00, 9.9it/s]",
        ),
        1,
        metric="train_loss",
        value=0.31,
        unit="epoch",
    ),
    Sample(
        "Lightning's checkpoints",
        ("Epoch 3, global step 120: 'val_loss' reached 0.31 (best 0.31), saving model to 'm.ckpt' as top 1",),
        120,
        metric="val_loss",
        value=0.31,
    ),
    Sample("Lightning's file names", ("saved epoch=3-step=120.ckpt",), 120),
    Sample(
        "fastai",
        (
            "epoch     train_loss  valid_loss  accuracy  time    ",
            "0         1.234567    0.987654    0.543210  00:05     ",
            "1         0.834567    0.687654    0.643210  00:05     ",
        ),
        2,
        metric="valid_loss",
        value=0.687654,
        unit="epoch",
    ),
    Sample(
        "nanoGPT",
        (
            "step 0: train loss 4.2, val loss 4.3",
            "iter 0: loss 4.2, time 12.3ms, mfu 10.1%",
            "iter 10: loss 2.3, time 12.3ms, mfu 10.1%",
            "step 500: train loss 2.1, val loss 2.2",
        ),
        501,
        metric="val_loss",
        value=2.2,
    ),
    Sample(
        "Megatron",
        (
            " iteration      100/  500000 | consumed samples: 25600 | elapsed time per iteration (ms): 100.0 |"
            " learning rate: 1.0E-4 | lm loss: 2.3E+00 | loss scale: 1.0 |",
        ),
        100,
        500_000,
        metric="lm loss",
        value=2.3,
    ),
    Sample(
        "torchtitan",
        (
            "[rank0]:[titan] 2024-06-01 10:00:00,123 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  7.1  \x1b[0mmfu: 3%",
        ),
        10,
        value=7.1,
    ),
    Sample(
        "DeepSpeed",
        (
            "[2024-01-01 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05], mom=[(0.9)]",
        ),
        10,
    ),
    Sample(
        "Stable-Baselines3",
        (
            "---------------------------------",
            "| rollout/           |          |",
            "|    ep_rew_mean     | 21.3     |",
            "| time/              |          |",
            "|    fps             | 1000     |",
            "|    iterations      | 1        |",
            "|    total_timesteps | 2048     |",
            "---------------------------------",
        ),
        2048,
        metric="ep_rew_mean",
        value=21.3,
    ),
    Sample(
        "scikit-learn", ("Iteration 1, loss = 0.9", "Iteration 12, loss = 0.3"), 12, value=0.3, unit="iteration"
    ),
    Sample(
        "scikit-learn's table",
        (
            "      Iter       Train Loss   Remaining Time ",
            "         1           1.2345            1.23s",
            "        10   0.9    0.1s",
        ),
        10,
        unit="iteration",
    ),
    Sample("JAX with absl", ("I0101 12:00:00.123456 140 train.py:100] step: 100, loss: 0.3",), 100, value=0.3),
    Sample(
        "CLU", ("I0101 12:00:00.123456 140 logging_writer.py:64] [100] accuracy=0.9, loss=0.3",), 100, value=0.3
    ),
    Sample(
        "fairseq",
        (
            "2024-01-01 10:00:00 | INFO | train_inner | epoch 001:    20 / 3000 loss=9.1, ppl=550, num_updates=20, lr=1e-05",
        ),
        20,
        value=9.1,
    ),
    Sample(
        "detectron2",
        ("[01/01 10:00:00 d2.utils.events]:  eta: 0:15:10  iter: 19  total_loss: 2.3  loss_cls: 0.9  lr: 0.0004",),
        19,
        metric="total_loss",
        value=2.3,
    ),
    Sample(
        "spaCy",
        (
            "E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  ENTS_P  ENTS_R  SCORE ",
            "---  ------  ------------  --------  ------  ------  ------  ------",
            "  0       0          0.00     36.67    0.00    0.00    0.00    0.00",
            "  1     200         12.00    120.00   61.20   63.00   59.00    0.61",
        ),
        200,
        metric="SCORE",
        value=0.61,
    ),
    Sample(
        "ImageNet example",
        (
            "Epoch: [0][   1/5005]\tTime 0.1 (0.1)\tLoss 6.9 (6.9)\tAcc@1 0.39 (0.39)",
            "Epoch: [0][  11/5005]\tTime 0.1 (0.1)\tLoss 6.8 (6.9)\tAcc@1 0.39 (0.39)",
            "Epoch: [0][5001/5005]\tTime 0.1 (0.1)\tLoss 4.8 (6.9)\tAcc@1 0.39 (0.39)",
        ),
        1,
        metric="Loss",
        value=4.8,
        unit="epoch",
    ),
    Sample(
        "MNIST example",
        (
            "Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.300039",
            "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.100039",
            "Train Epoch: 1 [59520/60000 (99%)]\tLoss: 0.300039",
            "Train Epoch: 2 [0/60000 (0%)]\tLoss: 0.200039",
        ),
        1,
        metric="Loss",
        value=0.300039,
        unit="epoch",
    ),
    Sample(
        "timm",
        ("Train: 0 [1250/1251 (100%)]  Loss: 6.9 (6.9)", "Train: 1 [  50/1251 (  4%)]  Loss: 6.8 (6.9)"),
        1,
        metric="Loss",
        value=6.9,
        unit="epoch",
    ),
    Sample("logfmt", ('time=2024-01-01T10:00:00Z level=info msg="trained" step=120 loss=0.31',), 120, value=0.31),
    Sample("Estimator", ("INFO:tensorflow:loss = 0.31, step = 1200 (3.2 sec)",), 1200, value=0.31),
    Sample(
        "CSV", ("epoch,loss,val_loss", "1,0.9,0.8", "2,0.3,0.4"), 2, metric="val_loss", value=0.4, unit="epoch"
    ),
    Sample(
        "tutorial",
        ("Epoch 1/25", "----------", "train Loss: 0.6 Acc: 0.7", "val Loss: 0.2 Acc: 0.9"),
        1,
        25,
        metric="Loss",
        value=0.6,
        unit="epoch",
    ),
    Sample("in brackets", ("[Epoch 3] loss=0.3",), 3, value=0.3, unit="epoch"),
    Sample("a fraction", ("[3/10] loss: 0.3",), 3, 10, value=0.3),
    Sample("steps after their number", ("12/100 steps, loss 0.3",), 12, 100, value=0.3),
    Sample(
        "yolov5",
        (f"       0/2     3.35G   0.0451   0.0652   0.01    10   640: 100%|{FULL}| 8/8 [00:01<00:00, 8.0it/s]",),
        1,
        2,
        unit="epoch",
    ),
    Sample(
        "kohya",
        (
            f"steps:   0%|{HALF}| 0/1600 [00:00<?, ?it/s]",
            "epoch 1/10",
            f"steps:   1%|{HALF}| 20/1600 [00:20<27:00,  1.03s/it, avr_loss=0.12]",
            "epoch 2/10",
            f"steps:  11%|{HALF}| 180/1600 [03:20<27:00,  1.03s/it, avr_loss=0.11]",
        ),
        180,
        1600,
        metric="avr_loss",
        value=0.11,
        unit="bar of 1600",
    ),
    Sample(
        "tqdm with a loss before it",
        (f"loss: 0.0123:   1%|{HALF}| 700/70000 [05:00<8:00:00,  2.40it/s]",),
        700,
        70_000,
        value=0.0123,
        unit="bar of 70000",
    ),
    Sample(
        "torchtune",
        (f"1|25|Loss: 1.23:  10%|{HALF}| 25/250 [00:20<03:00,  1.2it/s]",),
        25,
        250,
        metric="Loss",
        value=1.23,
        unit="bar of 250",
    ),
    Sample(
        "Gaussian splatting",
        (f"Training progress:  10%|{HALF}| 3000/30000 [01:00<09:00, 50.0it/s, Loss=0.05]",),
        3000,
        30_000,
        metric="Loss",
        value=0.05,
        unit="bar of 30000",
    ),
    Sample(
        "AllenNLP",
        (
            "2020-01-01 10:00:00,000 - INFO - allennlp.training.trainer - Epoch 0/4",
            "2020-01-01 10:00:00,000 - INFO - allennlp.training.trainer - Training",
            f"accuracy: 0.5, loss: 0.7 ||: 100%|{FULL}| 50/50 [00:05<00:00, 10.00it/s]",
        ),
        1,
        4,
        metric="f1",
        unit="epoch",
    ),
    Sample(
        "DINO",
        (
            "Epoch: [0/100]  [   0/2000]  eta: 1:00:00  loss: 11.0",
            "Epoch: [0/100]  [1990/2000]  eta: 0:00:10  loss: 10.5",
            "Epoch: [1/100]  [   0/2000]  eta: 1:00:00  loss: 10.0",
        ),
        1,
        100,
        value=10.5,
        unit="epoch",
    ),
    Sample(
        "LAVIS",
        (
            "Train: data epoch: [0]  [   0/1000]  eta: 0:10:00  lr: 1e-5  loss: 2.3",
            "Train: data epoch: [0]  [ 999/1000]  eta: 0:00:00  lr: 1e-5  loss: 2.2",
        ),
        1,
        value=2.2,
        unit="epoch",
    ),
    Sample(
        "Swin",
        (
            "[2023-01-01 10:00:00 swin](main.py 230): INFO Train: [0/300][0/1251]\teta 2:00:00\tloss 6.9 (6.9)",
            "[2023-01-01 10:00:00 swin](main.py 230): INFO Train: [1/300][0/1251]\teta 2:00:00\tloss 6.8 (6.8)",
        ),
        1,
        300,
        value=6.9,
        unit="epoch",
    ),
    Sample(
        "PaddleClas",
        (
            "[2023/01/01 10:00:00] ppcls INFO: [Train][Epoch 1/120][Iter: 0/313]lr: 0.0001, loss: 6.9",
            "[2023/01/01 10:00:10] ppcls INFO: [Train][Epoch 1/120][Iter: 310/313]lr: 0.0001, loss: 5.9",
            "[2023/01/01 10:00:20] ppcls INFO: [Train][Epoch 2/120][Iter: 0/313]lr: 0.0001, loss: 5.5",
        ),
        1,
        120,
        value=5.9,
        unit="epoch",
    ),
    Sample(
        "Flair",
        (
            "2023-01-01 10:00:00,000 epoch 1 - iter 10/100 - loss 2.3 - time (sec): 1.0",
            "2023-01-01 10:00:00,000 epoch 1 - iter 100/100 - loss 2.1 - time (sec): 1.0",
            "2023-01-01 10:00:00,000 epoch 2 - iter 10/100 - loss 1.3 - time (sec): 1.0",
        ),
        1,
        value=2.1,
        unit="epoch",
    ),
    Sample(
        "icefall, which prints ranks",
        (
            "2023-01-01 10:00:00,000 INFO [train.py:700] (0/4) Epoch 1, batch 0, loss[loss=1.0], batch size: 50",
            "2023-01-01 10:00:00,000 INFO [train.py:700] (0/4) Epoch 1, batch 50, loss[loss=0.9], batch size: 50",
            "2023-01-01 10:00:00,000 INFO [train.py:700] (0/4) Epoch 2, batch 0, loss[loss=0.8], batch size: 50",
        ),
        1,
        value=0.9,
        unit="epoch",
    ),
    Sample(
        "epochs with steps that go on",
        ("Epoch 1 | iter 10 | loss 0.9", "Epoch 1 | iter 20 | loss 0.8", "Epoch 2 | iter 40 | loss 0.6"),
        2,
        value=0.6,
        unit="epoch",
    ),
    Sample(
        "a line an epoch, with its step",
        ("epoch 1 step 100 loss 0.9", "epoch 2 step 200 loss 0.8", "epoch 3 step 300 loss 0.7"),
        3,
        value=0.7,
        unit="epoch",
    ),
    Sample(
        "CIFAR tutorial",
        ("[1,  2000] loss: 2.2", "[1,  4000] loss: 2.1", "[2,  2000] loss: 1.9"),
        1,
        value=2.1,
        unit="epoch",
    ),
    Sample(
        "ESPnet",
        (
            "[host] 2023-01-01 10:00:00,000 (trainer:270) INFO: 1/50epoch started",
            "[host] 2023-01-01 10:00:00,000 (trainer:338) INFO: 1epoch results: [train] loss=90.1, [valid] x=80",
            "[host] 2023-01-01 10:00:00,000 (trainer:270) INFO: 2/50epoch started. Estimated time to finish: 1 h",
        ),
        1,
        50,
        value=90.1,
        unit="epoch",
    ),
    Sample("Marian", ("[2023-01-01 10:00:00] Ep. 1 : Up. 1000 : Sen. 64,000 : Cost 7.1 * 1,000",), 1000),
    Sample("Darknet", (" 12: 700.1, 700.2 avg loss, 0.0001 rate, 3.2 seconds, 64 images, 10 hours left",), 12),
    Sample("StyleGAN", ("tick 2     kimg 8.0      time 2m 30s       sec/tick 60.0    sec/kimg 15.0",), 2),
    Sample(
        "Nerfstudio",
        (
            "Step (% Done)       Vis Step (time)     Train Iter (time)     ETA (time)",
            "10 (0.03%)          20.123 ms           100 ms                1 h, 2 m",
        ),
        10,
    ),
    Sample(
        "rsl_rl",
        ("              Learning iteration 10/1500              ", "             Mean reward: 3.2"),
        10,
        1500,
        metric="Mean reward",
        value=3.2,
        unit="iteration",
    ),
    Sample(
        "OpenMM",
        ('#"Step","Time (ps)","Potential Energy (kJ/mole)"', "1000,2.0,-123.4", "2000,4.0,-124.4"),
        2000,
    ),
    Sample(
        "OpenCLIP",
        (
            "2024-01-01,10:00:00 | INFO | Train Epoch: 0 [  1024/100000 (1%)] Batch (t): 1.2 Loss: 6.9 (6.9)",
            "2024-01-01,10:20:00 | INFO | Train Epoch: 1 [  1024/100000 (1%)] Batch (t): 1.2 Loss: 5.9 (5.9)",
        ),
        1,
        metric="Loss",
        value=6.9,
        unit="epoch",
    ),
    Sample(
        "Composer",
        (
            "2024-01-01 10:00:00,1: rank0[1][MainThread]: INFO: composer.loggers: [batch=10/1000]:",
            "\t Train time/batch: 9",
            "\t Train loss/train/total: 9.1",
            "[batch=20/1000]:",
            "\t Train time/batch: 19",
            "\t Train loss/train/total: 8.1",
        ),
        20,
        1000,
        metric="loss/train/total",
        value=8.1,
    ),
    Sample(
        "OLMo",
        (
            "2024-01-01 10:00:00.1 host:0 olmo.train:900 INFO [step=10/1000,epoch=0]",
            "    train/CrossEntropyLoss=9.1",
            "2024-01-01 10:00:10.1 host:0 olmo.train:900 INFO [step=20/1000,epoch=0]",
            "    train/CrossEntropyLoss=8.1",
        ),
        20,
        1000,
        metric="train/CrossEntropyLoss",
        value=8.1,
    ),
    Sample(
        "Levanter",
        ("Progress on:train 20.0it/1.00kit rate:3.2it/s remaining:05:10 elapsed:00:20 postfix:loss=6.1",),
        20,
        1000,
        value=6.1,
    ),
    Sample(
        "ML-Agents",
        (
            "[INFO] 3DBall. Step: 12000. Time Elapsed: 30.1 s. Mean Reward: 1.2. Std of Reward: 0.7. Training.",
            "[INFO] 3DBall. Step: 24000. Time Elapsed: 60.1 s. Mean Reward: 2.2. Std of Reward: 0.7. Training.",
        ),
        24_000,
        metric="Mean Reward",
        value=2.2,
    ),
    Sample("Hugging Face's Flax examples", ("Step... (500 | Loss: 2.3, Learning Rate: 0.0003)",), 500, value=2.3),
    Sample(
        "nanochat",
        (
            "step 00020/21400 (0.09%) | loss: 8.123456 | lrm: 1.00 | dt: 500.1ms | total time: 0.10m",
            "Step 00020 | Validation bpb: 1.1234",
        ),
        20,
        21_400,
        value=8.123456,
    ),
    Sample("pictures", ("🚀 Epoch 3/10 🔥 loss: 0.5",), 3, 10, value=0.5, unit="epoch"),
    Sample("episodes", ("Episode 12/1000 reward: 3.5",), 12, 1000, metric="reward", value=3.5, unit="episode"),
)

NO_LOGS = {
    "dates and versions": (
        "2024-01-01 10:00:00 torch 2.3.1, CUDA 12.1",
        "epoch 2024-01-01",
        "step 3.2.1",
        "seed 17",
    ),
    "a manual": ("step 1: install cuda 12", "Step 2: run pip install torch==2.1", "In step 3 we load 4 files"),
    "epoch as a time": ("Epoch: 1700000000", "epoch=1700000000.25", "Unix epoch 1970"),
    "HTTP": ('10.0.0.1 - - [01/Jan/2024:10:00:00] "GET /api?step=3 HTTP/1.1" 200 512', "GET /step/3 200"),
    "weights": (
        "Loaded 100/200 weights",
        "Loading checkpoint shards:  33%|███       | 1/3 [00:01<00:02,  1.0s/it]",
    ),
    "download": (
        "45%|████      | 45.0M/100M [00:12<00:15, 3.2MB/s]",
        "model.safetensors:  45%|████      | 45.0M/100M [00:12<00:15, 3.2MB/s]",
    ),
    "shards": (
        "Downloading shards: 3/5",
        f"Downloading shards: 100%|{FULL}| 5/5 [00:20<00:00, 4.0s/it]",
        f"Fetching 30 files:  10%|{HALF}| 3/30 [00:20<01:00, 4.0s/it]",
    ),
    "data": (
        f"Map: 100%|{FULL}| 1000/1000 [00:20<00:00, 50.0 examples/s]",
        f"Tokenizing (num_proc=4):  10%|{HALF}| 100/1000 [00:20<00:00, 5.0it/s]",
    ),
    "evaluation": (
        f"Evaluating: 45%|{HALF}| 45/100 [00:20<00:15, 3.4it/s]",
        f"Validation DataLoader 0: 45%|{HALF}| 45/100 [00:20<00:15, 3.4it/s]",
        "Epoch(val) done",
    ),
    "an unnamed short bar": (f"100%|{FULL}| 157/157 [00:03<00:00, 50.0it/s]", "100%|####| 3/3"),
    "prose": (
        "the next step 3 times better",
        "every step 10 saves",
        "No improvement since epoch 3",
        "warmup until step 500",
    ),
    "compiling": ("[10/200] Building CXX object a.o", "[ 45%] Building CXX object a.o", "[10] 12345"),
    "pip": (
        "Collecting torch==2.1.0",
        "Downloading torch-2.1.0.whl (670.2 MB)",
        "   ━━━━━━━━━━ 45.0/670.2 MB 3.2 MB/s eta 0:00:10",
    ),
    "settings": (
        "warmup_steps=500",
        "max_steps: 10000",
        "Namespace(epochs=10, lr=0.1, steps=300)",
        "epochs: 10",
        "num_epochs = 3",
        "Number of epochs: 3",
        "max epochs: 10",
    ),
    "settings as a program shows them": (
        "Namespace(lr=0.1, epoch=100, step=10)",
        "TrainConfig(step=10, epoch=3)",
        "args: epoch=100 lr=0.1",
        "INFO:root:config: {'epoch': 100, 'iters': 5}",
        "epoch=100, batch_size=32, lr=0.1",
        "1 epoch = 500 steps",
        "{'epoch': 100, 'batch_size': 32, 'lr': 0.1}",
    ),
    "evaluation in words": (
        "val step 3/10",
        "[val] step 4/10 acc 0.2",
        "[test] iter 4/10 acc 0.2",
        "Test: epoch [0] [ 3/10] acc: 0.5",
        "dev iteration 3/5",
        f"val loss: 0.5:  50%|{HALF}| 5/10 [00:12<00:12,  1.0s/it]",
    ),
    "settings of Hugging Face": (
        "  Num Epochs = 3",
        "  Total optimization steps = 1,000",
        "  Gradient Accumulation steps = 1",
        "  Num examples = 10,000",
        "save every 500 steps",
    ),
    "resumption": (
        "resuming from step 12",
        "Restoring states from the checkpoint path at epoch=3-step=120.ckpt",
        "Loaded checkpoint at epoch 3",
        "Continuing training from global step 500",
    ),
    "a stack trace": (
        "Traceback (most recent call last):",
        '  File "/app/epoch_3/train.py", line 120, in step',
        "RuntimeError: step 3b failed with code 12",
    ),
    "Docker": ("Step 1/5 : FROM python:3.9", "Step 2/5 : RUN pip install torch", " ---> 1234567890ab"),
    "NCCL": ("node1:123:456 [0] NCCL INFO comm 0x12 rank 0 nranks 8", "[0] NCCL INFO Channel 00/02 : 0 1"),
    "LightGBM": (
        "[LightGBM] [Info] Total Bins 255",
        "[LightGBM] [Warning] No further splits with positive gain, best gain: -inf",
    ),
    "best": ("best epoch: 5", "Best model was at step 300", "last step: 99", "EarlyStopping patience: 3 epochs"),
    "speed": ("global_step/sec: 31.2", "steps per second: 12", "12 steps/s", "3.4 it/s"),
    "Slurm": (
        "srun: Job 123456 step creation temporarily disabled",
        "slurmstepd: error: *** STEP 123456.0 ON node1 CANCELLED",
    ),
    "sanity checks": (
        f"Sanity Checking DataLoader 0: 100%|{FULL}| 2/2 [00:12<00:00, 9.9it/s]",
        "Iter(val) [ 50/500]    eta: 0:00:10  time: 0.1",
    ),
}
