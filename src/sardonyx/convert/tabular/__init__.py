"""Fitted estimators of scikit-learn, xgboost, lightgbm and catboost as ONNX models, in float64."""
