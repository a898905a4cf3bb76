# A job for each setting: docs/source/running-jobs/many-jobs.rst, "Scale up the Job", of skypilot-org/skypilot at
# 013d436a1de6e39cd5d1cbbc94790418781f96b4.
for lr in 0.3 0.1 0.03 0.01; do
  sky jobs launch -n lines-$lr -y -d job.yaml --env LR=$lr
done
