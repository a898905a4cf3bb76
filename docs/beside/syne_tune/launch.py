# SageMaker's backend: examples/launch_height_sagemaker.py of syne-tune/syne-tune at the parent of
# ecf40a25 ("Moving sagemaker functionalities to another package (#865)"), the last to have it; spot machines are
# SageMaker's own (use_spot_instances, max_wait), https://docs.aws.amazon.com/sagemaker/latest/dg/model-checkpoints-resume.html
from sagemaker.pytorch import PyTorch
from syne_tune import StoppingCriterion, Tuner
from syne_tune.backend import SageMakerBackend
from syne_tune.backend.sagemaker_backend.sagemaker_utils import default_sagemaker_session, get_execution_role
from syne_tune.config_space import choice
from syne_tune.optimizer.baselines import GridSearch
from work import LEARNING_RATES

estimator = PyTorch(
    entry_point="train.py",
    source_dir=".",
    dependencies=["work.py"],
    instance_type="ml.g6.xlarge",
    instance_count=1,
    framework_version="2.0",
    py_version="py310",
    role=get_execution_role(),
    sagemaker_session=default_sagemaker_session(),
    use_spot_instances=True,
    max_run=3600,
    max_wait=7200,
)
tuner = Tuner(
    trial_backend=SageMakerBackend(sm_estimator=estimator, metrics_names=["loss"]),
    scheduler=GridSearch({"lr": choice(LEARNING_RATES)}, metric="loss", mode="min"),
    stop_criterion=StoppingCriterion(max_num_trials_finished=len(LEARNING_RATES)),
    n_workers=len(LEARNING_RATES),
)
tuner.run()
